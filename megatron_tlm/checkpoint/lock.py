"""One writer per folder: two runs that save to the same place would delete each other's unfinished parts."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from megatron_tlm.checkpoint.folder import way_out
from megatron_tlm.checkpoint.prune import sweep
from megatron_tlm.errors import CheckpointError, HeldError

LOCK_NAME = ".lock"


class FolderLock:
    """Held from the start until `release`, the end of a `with` block or of the process, however it ends.

    HeldError where another run holds it. A file system without locks is used without one. The empty file goes
    when it is released; one that a process left behind as it ended is held by nobody. What a killed run left unfinished
    in the folder goes when the lock is taken: nobody is at work on it.
    """

    def __init__(self, root: Path) -> None:
        self._path = Path(root) / LOCK_NAME
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab")  # noqa: SIM115  # held beyond this function
        except OSError as error:
            raise CheckpointError(f"{root} cannot be written ({error.strerror}); {way_out(error)}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = self._is_current()
        except BlockingIOError:
            held = False
        except OSError:
            return
        if not held:
            self._file.close()
            raise HeldError(f"{root} is held by another run; wait for it or save to another folder")
        sweep(self._path.parent)

    def release(self) -> None:
        if not self._file.closed:
            if self._is_current():
                self._path.unlink()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _is_current(self) -> bool:
        """Whether the locked file still has its name: its former holder may have removed it just before."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False
