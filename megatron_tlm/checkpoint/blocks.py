"""Large tensors in small blocks, and how far along they are."""

import threading
from collections.abc import Callable, Iterator
from math import prod

from megatron_tlm.checkpoint.tiling import Box
from megatron_tlm.errors import CheckpointError

BLOCK_BYTES = 4 << 20

Progress = Callable[[int, int], None]


def row_blocks(box: Box, element_bytes: int) -> Iterator[Box]:
    """A box as consecutive blocks of whole rows of at most BLOCK_BYTES, of one row where a row is larger."""
    offset, size = box
    if not size:
        yield box
        return
    rows = max(1, BLOCK_BYTES // max(1, prod(size[1:]) * element_bytes))
    for start in range(0, size[0], rows):
        yield (offset[0] + start, *offset[1:]), (min(rows, size[0] - start), *size[1:])


class ByteCounter:
    """Bytes done, told from several threads; also the place where a failure elsewhere stops the others."""

    def __init__(self, size_bytes: int, progress: Progress | None) -> None:
        self._all, self._done, self._progress = size_bytes, 0, progress
        self._stopped = False
        self._lock = threading.Lock()

    def stop(self) -> None:
        self._stopped = True

    def add(self, size_bytes: int) -> None:
        if self._stopped:
            raise CheckpointError("conversion = stopped because another part failed; see the first error")
        with self._lock:
            self._done += size_bytes
            if self._progress:
                self._progress(self._done, self._all)
