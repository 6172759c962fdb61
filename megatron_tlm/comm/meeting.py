"""Ranks that talk before they are connected: words through the key-value store that torchrun opens, no tensors.

Here a rank that cannot go on says why, a rank that is slow says that it is still at work, and one that never came is
missed by name; a process group would only hang, or fail in its own words. Rank 0 hears all and speaks for all, so a
topic costs the store a few keys per rank.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistNetworkError
from torch.distributed.rendezvous import rendezvous

from megatron_tlm.comm.stuck import ends_when_stuck
from megatron_tlm.errors import CommError, few

SLICE = timedelta(seconds=1)  # between two looks at who is still at work
GRACE_SECONDS = 3.0  # what is left to the others once one rank has failed
EARLY = "early"  # the word of a rank that failed before it could meet
_ROOT = "megatron_tlm"


@dataclass(frozen=True)
class Meeting:
    """One rank's place at the store; `store` is None for a process on its own, which agrees with itself."""

    rank: int
    world_size: int
    timeout: timedelta
    store: Store | None = None

    def decide(self, topic: str, value: Any, judge: Callable[[Sequence[Any]], Any]) -> Any:
        """What rank 0 makes of everybody's value (JSON types), on every rank; `judge` runs on rank 0 alone.

        The judge gets None for a rank that had not spoken when another had failed. CommError where a rank stays away
        for longer than the timeout without a sign of work, naming it, and where the store is gone.
        """
        if self.store is None:
            return judge([value])
        try:
            with ends_when_stuck(self.timeout, "the rendezvous") as alive:
                self.store.set(f"{topic}/{self.rank}", json.dumps(value))
                if self.rank == 0:
                    outcome = self._hear(self.store, topic, judge, alive)
                    self.store.set(f"{topic}/outcome", json.dumps(outcome))
                else:
                    self._wait_for_first(self.store, topic, alive)
                    outcome = json.loads(self.store.get(f"{topic}/outcome"))
                    self.store.add(f"{topic}/heard", 1)
        except DistNetworkError as error:
            raise CommError(
                f"rendezvous = lost by rank {self.rank} of {self.world_size} ({_first_line(error)}); see what rank 0 "
                "and its torchrun said, they hold it"
            ) from error
        if "absent" in outcome:
            absent = CommError(outcome["absent"])
            absent.passing = outcome["passing"]
            raise absent
        return outcome["decided"]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within: the others wait for this rank as long as it lives, not for the timeout. The store is left alone."""
        if self.store is None:
            yield
            return
        store, done = self.store, threading.Event()

        def beat() -> None:
            with suppress(RuntimeError):
                while not done.wait(SLICE.total_seconds()):
                    store.add(f"beat/{self.rank}", 1)

        thread = threading.Thread(target=beat, name="meeting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def fail(self) -> None:
        """Before `decide`: this rank's value is a failure, and the others need not finish what they are at."""
        if self.store is not None:
            self.store.set("failed", "1")

    def dismiss(self, topic: str) -> None:
        """Rank 0, about to leave, gives the others a moment to hear the last outcome: the store may go with it."""
        if self.store is None or self.rank:
            return
        deadline = time.monotonic() + GRACE_SECONDS
        with suppress(RuntimeError):
            while self.store.add(f"{topic}/heard", 0) < self.world_size - 1 and time.monotonic() < deadline:
                time.sleep(0.05)

    def _hear(
        self, store: Store, topic: str, judge: Callable[[Sequence[Any]], Any], alive: Callable[[], None]
    ) -> dict[str, Any]:
        absent = self._wait_for_all(store, topic, alive)
        early = store.get(EARLY).decode() if store.check([EARLY]) else None
        if early is not None:
            return {"absent": early, "passing": False}
        if absent and not self._somebody_failed(store):
            return {"absent": self._missing(absent), "passing": True}
        values = [
            None if rank in absent else json.loads(store.get(f"{topic}/{rank}")) for rank in range(self.world_size)
        ]
        return {"decided": judge(values)}

    def _wait_for_all(self, store: Store, topic: str, alive: Callable[[], None]) -> list[int]:
        """The ranks that have not spoken when there is no more reason to wait for them."""
        absent, beats = list(range(1, self.world_size)), self._beats(store, range(1, self.world_size))
        deadline, failed = time.monotonic() + self.timeout.total_seconds(), False
        while not _all_there(store, [f"{topic}/{rank}" for rank in absent]):
            alive()
            absent = [rank for rank in absent if not store.check([f"{topic}/{rank}"])]
            store.add("beat/0", 1)
            if not failed and self._somebody_failed(store):
                failed, deadline = True, time.monotonic() + GRACE_SECONDS
            now = self._beats(store, absent)
            if not failed and any(now[rank] != beats[rank] for rank in absent):
                beats, deadline = {**beats, **now}, time.monotonic() + self.timeout.total_seconds()
            if time.monotonic() > deadline:
                return absent
        return []

    def _wait_for_first(self, store: Store, topic: str, alive: Callable[[], None]) -> None:
        beats, deadline = 0, time.monotonic() + self.timeout.total_seconds() + GRACE_SECONDS
        while not _all_there(store, [f"{topic}/outcome"]):
            alive()
            now = store.add("beat/0", 0)
            if now != beats:
                beats, deadline = now, time.monotonic() + self.timeout.total_seconds() + GRACE_SECONDS
            if time.monotonic() > deadline:
                raise CommError(self._missing([0]))

    def _missing(self, absent: Sequence[int]) -> str:
        return (
            f"ranks = {self.world_size - len(absent)} of {self.world_size} met within "
            f"{self.timeout.total_seconds():g} s, absent: {few(absent, 8)}; look at what those said on their own "
            "node, or raise --distributed-timeout-minutes"
        )

    @staticmethod
    def _beats(store: Store, ranks: Sequence[int]) -> dict[int, int]:
        return {rank: store.add(f"beat/{rank}", 0) for rank in ranks}

    @staticmethod
    def _somebody_failed(store: Store) -> bool:
        return bool(store.check([EARLY])) or bool(store.check(["failed"]))


def _all_there(store: Store, keys: list[str]) -> bool:
    """Whether they are there within a slice. Asked again and again: a wait that is in vain prints torch's warnings."""
    end, pause = time.monotonic() + SLICE.total_seconds(), 0.01
    while not store.check(keys):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, SLICE.total_seconds() / 4)
    return True


def meet(rank: int, world_size: int, timeout: timedelta) -> Meeting:
    """Joins the store that MASTER_ADDR and MASTER_PORT name; CommError where it cannot be reached."""
    if world_size == 1:
        return Meeting(rank, world_size, timeout)
    absent = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if absent:
        raise CommError(
            f"environment = {', '.join(absent)} not set (0 ranks joined, {world_size} needed); "
            "start with torchrun --nproc-per-node N -m megatron_tlm train"
        )
    return Meeting(rank, world_size, timeout, PrefixStore(_prefix(), open_store(rank, world_size, timeout)))


def open_store(rank: int, world_size: int, timeout: timedelta) -> Store:
    """The store of this launch, as torch itself would open it; CommError naming host and port where it cannot."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store: Store
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    except (RuntimeError, ValueError) as error:
        raise CommError(
            f"rendezvous = {address} cannot be reached by rank {rank} on {socket.gethostname()} "
            f"({_first_line(error)}); `megatron-tlm doctor --rdzv-endpoint {address}` on this node says why"
        ) from error
    store.set_timeout(timeout)
    return store


def leave_early_word(line: str, rank: int, world_size: int, *, seconds: float = 5.0) -> None:
    """Tells ranks that already meet, perhaps on other nodes, why this one will not come; best effort."""
    agent_holds_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and not agent_holds_store:
        return  # it would hold the store itself, and has nobody to tell
    with suppress(CommError, RuntimeError, KeyError):
        store = PrefixStore(_prefix(), open_store(rank, world_size, timedelta(seconds=seconds)))
        store.set(EARLY, f"rank {rank} on {socket.gethostname()}: {line}")


def _prefix() -> str:
    """A restarted node of torchrun may find the store of the attempt before, with all its words."""
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return f"{_ROOT}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') if alone else '0'}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
