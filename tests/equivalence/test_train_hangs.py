"""Ranks that neither go on nor go away: every other one ends by itself, within the timeout, and says why."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from megatron_tlm.config.schema import Config
from megatron_tlm.train.engines.zero import ZeroEngine
from tests.equivalence.launching import events_of, launch, run_config

MINUTES = 0.25
GRACE_SECONDS = 45.0  # for a busy machine; what is measured is that it ends, not that it ends late


def hanging(folder: Path, **changes: Any) -> Config:
    return run_config(folder, distributed_timeout_minutes=MINUTES, eval_iters=0, **changes)


def until_step(config: Config, step: int) -> None:
    metrics, deadline = Path(config.logging.log_dir or "") / "metrics.jsonl", time.monotonic() + 90
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") >= step):
        time.sleep(0.02)


def until_gone(pid: int) -> float:
    """Seconds until a process has ended; it is left to be waited for."""
    begin = time.monotonic()
    while time.monotonic() - begin < 120 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.05)
    return time.monotonic() - begin


def test_a_rank_that_is_stopped_ends_the_others_within_the_timeout(tmp_path: Path) -> None:
    """Rank 1 gets SIGSTOP; what torchrun does to it in the end is done here."""
    config = hanging(tmp_path, train_iters=100_000)
    seconds = []

    def stop(pids: list[int]) -> None:
        until_step(config, 2)
        os.kill(pids[1], signal.SIGSTOP)
        seconds.append(until_gone(pids[0]))
        os.kill(pids[1], signal.SIGKILL)

    ended = launch(config, 2, meanwhile=stop)
    assert ended.codes == [1, -signal.SIGKILL], ended.complained
    assert 60 * MINUTES - 2 < seconds[0] < 60 * MINUTES + GRACE_SECONDS
    assert re.search(
        r"error: rank 0 on \S+, stage 0, step \d+: a peer = silent for longer than --distributed-timeout-minutes",
        ended.err[0],
    )
    assert events_of(config)[-1]["event"] == "failure"


def test_a_rank_that_sleeps_is_ended_by_its_own_watchdog(tmp_path: Path) -> None:
    """On its own, without a peer that could miss it; it says at which line it stands."""

    def sleep_in_step_3(rank: int) -> None:
        take, taken = ZeroEngine.train_step, []

        def train_step(self: Any, *given: Any) -> Any:
            taken.append(1)
            if len(taken) == 3:
                fall_asleep()
            return take(self, *given)

        ZeroEngine.train_step = train_step  # type: ignore[method-assign]

    def fall_asleep() -> None:
        time.sleep(300)

    begin = time.monotonic()
    ended = launch(hanging(tmp_path), 1, before=sleep_in_step_3, timeout_seconds=120)
    assert ended.codes == [1], ended.complained
    assert time.monotonic() - begin < 1.25 * 60 * MINUTES + GRACE_SECONDS
    assert "in fall_asleep" in ended.err[0]
    assert re.search(
        r"error: rank 0 on \S+, stage 0, step 3 = \d+ s without a sign of life, above the 19 s", ended.err[0]
    )


def test_a_rank_that_leaves_in_the_last_collective_takes_the_others_along(tmp_path: Path) -> None:
    """Killed in the last save of all, when nobody has another step to find out in."""
    config = hanging(tmp_path, train_iters=4)

    def die(rank: int) -> None:
        from megatron_tlm.train.saving import saver

        if rank == 1:
            saver.write_part = lambda *given: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]

    begin = time.monotonic()
    ended = launch(config, 2, before=die)
    assert ended.codes == [1, -signal.SIGKILL], ended.complained
    assert time.monotonic() - begin < 60
    assert re.search(r"error: rank 0 on \S+, stage 0, saving step 4: lost its peers", ended.err[0])
    assert not list((tmp_path / "ck").glob("step-*"))
