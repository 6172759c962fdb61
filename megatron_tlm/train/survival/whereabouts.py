"""Where a rank is in its run: what it says of itself when it ends, and the watch that ends it when it stands still."""

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from megatron_tlm.comm.torchrun import leave_word
from megatron_tlm.train.logs.heartbeat import Heartbeat, Phase

_WAKE_SECONDS = 5.0


class Whereabouts:
    """One per rank, kept up to date by whoever is at work; `steps` are done, `spoken` once it has told how it ends."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.stage, self.steps = rank, 0, 0
        self.doing, self.signs = "before the first step", 0
        self.spoken = False
        self.heart = Heartbeat(None, rank, 1)

    def at(self, doing: str, phase: Phase = "training") -> None:
        """Begins something: "step 17"."""
        self.doing = doing
        self.alive()
        self.heart.beat(phase, self.steps)

    def alive(self, *_: object) -> None:
        """A sign of life in the midst of it; fit to be a forward hook."""
        self.signs += 1

    def __str__(self) -> str:
        return f"rank {self.rank} on {socket.gethostname()}, stage {self.stage}, {self.doing}"


class Watchdog:
    """Within: a rank that gives no sign for `seconds` says where it stands, down to the line, and ends with code 1.

    What hangs in a collective is ended by that one's own timeout, sooner, and with the cause. This is for all else: a
    file system that does not answer, a loop without an end. Time in which the whole process was stopped does not count.
    """

    def __init__(self, place: Whereabouts, seconds: float, end: Callable[[int], object] = os._exit) -> None:
        self._place, self._seconds, self._end = place, seconds, end
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _watch(self) -> None:
        wake = min(_WAKE_SECONDS, self._seconds / 4)
        still, seen = 0.0, self._place.signs
        while not self._done.wait(wake):
            # Counted, not read off a clock: a process that was stopped and goes on has not been awake for long.
            still = still + wake if seen == self._place.signs else 0.0
            seen = self._place.signs
            if still >= self._seconds:
                self._give_up(still)
                return

    def _give_up(self, still: float) -> None:
        line = (
            f"{self._place} = {still:.0f} s without a sign of life, above the {self._seconds:.0f} s that "
            "--distributed-timeout-minutes allows; its threads are shown above, raise it if this is only slow"
        )
        leave_word(line)
        self._place.heart.beat("failed")
        with suppress(OSError):
            faulthandler.dump_traceback(file=sys.stderr.fileno())
            sys.stderr.write(f"megatron-tlm: error: {line}\n")
            sys.stderr.flush()
        self._end(1)
