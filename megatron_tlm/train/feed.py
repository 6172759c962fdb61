"""Micro-batches read ahead of training by a thread, and how long training waited for them all the same."""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

AHEAD = 4  # micro-batches
_POLL_SECONDS = 0.1
_LEAVE_SECONDS = 5.0

Batch = NDArray[np.int64]


class Feed:
    """The same micro-batches in the same order; `take_wait` says how long they were waited for since last asked.

    `pinned`: in page-locked memory, from which a copy to the GPU does not hold up the host. A fault of the reader is
    raised where its batch is asked for.
    """

    def __init__(self, batches: Iterator[Batch], *, pinned: bool) -> None:
        self._batches, self._pinned = batches, pinned
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(AHEAD)
        # A copy to the GPU may still be under way when the loop lets go of its batch.
        self._used: deque[Batch] = deque(maxlen=2 * AHEAD)
        self._wait = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="data", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        # A reader that hangs in a file system shall not hold up a rank that leaves.
        self._thread.join(_LEAVE_SECONDS)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        start = time.perf_counter()
        given = self._ready.get()
        self._wait += time.perf_counter() - start
        if isinstance(given, BaseException):
            raise given
        if self._pinned:
            self._used.append(given)
        return given

    def take_wait(self) -> float:
        """Seconds."""
        wait, self._wait = self._wait, 0.0
        return wait

    def _read(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(_pin(batch) if self._pinned else batch):
                    return
            self._put(StopIteration())
        except Exception as error:
            self._put(error)

    def _put(self, item: Batch | BaseException) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def _pin(batch: Batch) -> Batch:
    pinned: Batch = torch.from_numpy(batch).pin_memory().numpy()
    return pinned
