"""Ranks as threads at one in-memory store: who is heard, who is missed, and who ends the wait."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from megatron_tlm.comm import meeting
from megatron_tlm.comm.meeting import EARLY, Meeting, leave_early_word, meet
from megatron_tlm.errors import CommError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks five times a second, and grants a failed launch one second."""
    monkeypatch.setattr(meeting, "SLICE", timedelta(seconds=0.2))
    monkeypatch.setattr(meeting, "GRACE_SECONDS", 1.0)


Act = Callable[[Meeting], Any]


def at_store(ranks: int, act: Act, *, seconds: float = 20, absent: Sequence[int] = ()) -> list[Any]:
    """`act(meeting)` on every rank but the absent ones; what each gave, or the error it raised."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        try:
            return act(Meeting(rank, ranks, timedelta(seconds=seconds), store))
        except CommError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, [rank for rank in range(ranks) if rank not in absent]))


def test_every_rank_gets_what_rank_0_makes_of_all_values() -> None:
    assert (
        at_store(3, lambda it: it.decide("topic", [it.rank, "x"], lambda told: {"all": list(told)}))
        == [{"all": [[0, "x"], [1, "x"], [2, "x"]]}] * 3
    )


def test_topics_do_not_mix() -> None:
    def act(it: Meeting) -> tuple[Any, Any]:
        return it.decide("one", it.rank, sum), it.decide("two", -it.rank, sum)

    assert at_store(2, act) == [(1, -1)] * 2


def test_a_process_on_its_own_agrees_with_itself() -> None:
    alone = meet(0, 1, timedelta(seconds=1))
    with alone.at_work():
        assert alone.decide("topic", 5, sum) == 5
    alone.fail()
    alone.dismiss("topic")


def test_an_absent_rank_is_named_on_all_others() -> None:
    start = time.monotonic()
    told = at_store(4, lambda it: it.decide("topic", 1, sum), seconds=1.5, absent=[2])
    assert time.monotonic() - start < 8
    sentence = (
        "ranks = 3 of 4 met within 1.5 s, absent: 2; look at what those said on their own node, or raise "
        "--distributed-timeout-minutes"
    )
    assert [str(error) for error in told] == [sentence] * 3


def test_an_absent_rank_0_is_named_too() -> None:
    (told,) = at_store(2, lambda it: it.decide("topic", 1, sum), seconds=0.5, absent=[0])
    assert "1 of 2 met within 0.5 s, absent: 0" in str(told)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_at_work_is_waited_for_beyond_the_timeout(slow: int) -> None:
    def act(it: Meeting) -> Any:
        if it.rank == slow:
            with it.at_work():
                time.sleep(2.5)
        return it.decide("topic", it.rank, sum)

    assert at_store(2, act, seconds=1) == [1, 1]


def test_a_failure_ends_the_wait_for_those_at_work() -> None:
    def act(it: Meeting) -> Any:
        if it.rank == 2:
            with it.at_work():
                time.sleep(4)
            return "late"
        if it.rank == 1:
            it.fail()
        return it.decide("topic", f"rank {it.rank}", list)

    start = time.monotonic()
    told = at_store(3, act, seconds=60)
    assert told == [["rank 0", "rank 1", None]] * 2 + ["late"]
    assert time.monotonic() - start < 8


def test_the_word_of_a_rank_that_failed_before_it_met_reaches_all() -> None:
    def act(it: Meeting) -> Any:
        if it.rank == 1:
            time.sleep(0.5)
            assert it.store is not None
            it.store.set(EARLY, "rank 1 on far: run.yaml = no such file")
            return None
        return it.decide("topic", it.rank, sum)

    told = at_store(3, act)
    word = "rank 1 on far: run.yaml = no such file"
    assert [str(item) for item in told] == [word, "None", word]


def test_rank_0_leaves_when_the_others_have_heard() -> None:
    def act(it: Meeting) -> float:
        if it.rank == 1:
            time.sleep(1)
        it.decide("topic", 1, sum)
        start = time.monotonic()
        it.dismiss("topic")
        return time.monotonic() - start

    assert all(seconds < 2 for seconds in at_store(2, act))


def test_a_master_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    with pytest.raises(CommError, match=r"rendezvous = 127.0.0.1:9 cannot be reached by rank 1 .*--rdzv-endpoint 127"):
        meet(1, 2, timedelta(seconds=1))
    # Best effort: nobody hears, nothing is raised.
    leave_early_word("a mistake", 1, 2, seconds=1)


def test_a_launcher_without_a_master_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "9")
    with pytest.raises(CommError, match=r"environment = MASTER_ADDR not set \(0 ranks joined, 2 needed\)"):
        meet(0, 2, timedelta(seconds=1))


def test_an_early_word_goes_through_the_launchers_store(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launcher.port)}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "3"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    leave_early_word("a mistake", 1, 2)
    with pytest.raises(CommError, match=rf"rank 1 on {os.uname().nodename}: a mistake") as told:
        meet(0, 2, timedelta(seconds=5)).decide("topic", 1, sum)
    assert not told.value.passing, "no restart mends it"
    # The next attempt finds no words of this one.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "4")
    with pytest.raises(CommError, match="absent: 1") as told:
        meet(0, 2, timedelta(seconds=0.5)).decide("topic", 1, sum)
    assert told.value.passing
