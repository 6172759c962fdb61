"""How long this rank stood in collectives along an axis: on the CPU, mostly for ranks that were not there yet."""

import time
from types import TracebackType
from typing import Self


class WaitMeter:
    """Adds up the seconds spent within. On a GPU these are those of the launch alone: the waiting is the device's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter() - self._began
