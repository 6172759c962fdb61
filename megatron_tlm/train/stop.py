"""SIGTERM and SIGINT as a wish: the step is finished, all ranks agree to stop, the run is saved, the exit code is 0."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from megatron_tlm.comm.groups import all_reduce_max

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """`with` it, then ask `agreed()` after every step. A second signal ends the process as it always did."""

    def __init__(self) -> None:
        self._former: dict[int, signal.Handlers | int | None] = {}
        self._asked = False

    def agreed(self) -> bool:
        """Whether any rank was asked to stop; collective, so that all ranks stop after the same step."""
        return all_reduce_max([float(self._asked)])[0] > 0

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; a run inside another thread is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._ask) for number in STOPPING}  # type: ignore[misc]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
