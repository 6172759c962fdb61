"""Wishes to stop: the step is finished, all ranks agree, the run is saved, the exit code is 0.

    SIGTERM, SIGINT, SIGUSR1    to any rank
    the stop file               seen by rank 0
    the exit duration           by rank 0's clock

A job that is cancelled may be sent a signal twice within a moment, by its scheduler and by torchrun: that is one wish,
and so is SIGTERM after the warning that SIGUSR1 is. Any other second signal ends the process as it always did; what was
being saved stays hidden, and the checkpoint before is whole.

A torchrun that is gone, which the kernel tells by a signal too, is no wish: ranks save and leave all the same, but as a
failure, or the other nodes' torchruns would take the run for finished.
"""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from megatron_tlm.comm.groups import all_reduce_max
from megatron_tlm.comm.torchrun import LAUNCHER_GONE
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.train.survival.agree import AgreedError

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_WISH_SECONDS = 3.0
_DURATION, _FILE = 1, 2  # below, numbers of signals from 3 on
_FIRST_SIGNAL = 3
_ORPHANED = 1000
LOST_LAUNCHER = "torchrun is gone"


class LostLauncherError(AgreedError):
    """A node's torchrun has gone while its ranks were at work; all have saved, where they may."""

    def __init__(self, text: str) -> None:
        super().__init__(text, passing=True)


class StopRequest:
    """`with` it, then ask `agreed()` after every step. `began` is the run's start on the monotonic clock."""

    def __init__(self, config: ResilienceConfig, rank: int = 0, began: float | None = None) -> None:
        self._config, self._rank = config, rank
        self._began = time.monotonic() if began is None else began
        self._former: dict[int, signal.Handlers | int | None] = {}
        self._signal, self._asked = 0, 0.0
        self._orphaned = False

    def agreed(self) -> str | None:
        """Why the run shall stop, None if it shall not; collective, so that all ranks stop after the same step."""
        wish = int(all_reduce_max([float(self._wish())])[0])
        if wish == _ORPHANED:
            return LOST_LAUNCHER
        if wish >= _FIRST_SIGNAL:
            return signal.Signals(wish - _FIRST_SIGNAL).name
        if wish == _FILE:
            return f"stop file {self._config.stop_file}"
        return f"exit duration {self._config.exit_duration_in_mins:g} minutes" if wish == _DURATION else None

    def _wish(self) -> int:
        if self._orphaned:
            return _ORPHANED
        if self._signal:
            return self._signal + _FIRST_SIGNAL
        # One rank alone looks: files and clocks differ between nodes.
        if self._rank == 0 and self._config.stop_file is not None and os.path.exists(self._config.stop_file):
            return _FILE
        minutes = self._config.exit_duration_in_mins
        late = self._rank == 0 and minutes is not None and time.monotonic() - self._began >= 60 * minutes
        return _DURATION if late else 0

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; a run inside another thread is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._ask) for number in STOPPING}  # type: ignore[misc]
            if LAUNCHER_GONE is not None:
                self._former[LAUNCHER_GONE] = signal.signal(LAUNCHER_GONE, self._lose)  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def _lose(self, number: int, frame: FrameType | None) -> None:
        # Behind a wish it is a launcher that was asked too, and ended as it should or, of SIGUSR1, as it does.
        self._orphaned = not self._signal

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._signal or (self._signal == signal.SIGUSR1 and number != self._signal):
            self._signal, self._asked = number, now
        elif now - self._asked > SAME_WISH_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
