"""A log that cannot be written ends that log, not the run: told once on the console."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megatron_tlm.checkpoint.folder import way_out

# What a full disk, a folder that went or a file cut short come up as.
LOG_FAULTS = (OSError, ValueError, RuntimeError)
_ROOM = "make room for the next run"
_BOARD_THREAD = "_AsyncWriterThread"


class LogGuard:
    """Writes for as long as writing works; `say` hears of the first fault of each log."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ended: set[str] = set()

    def write(self, log: str, action: Callable[[], object]) -> None:
        """Does `action` unless `log` has failed before."""
        if log in self._ended:
            return
        try:
            action()
        except LOG_FAULTS as error:
            self._ended.add(log)
            cause = " ".join((getattr(error, "strerror", None) or str(error)).split())
            remedy = way_out(error, _ROOM) if isinstance(error, OSError) else _ROOM
            self._say(f"{log} = not written any more ({cause}); training goes on without it, {remedy}")

    def close(self, log: str, action: Callable[[], object]) -> None:
        """The last of `log`: one that has failed is closed too, in silence."""
        if log in self._ended:
            with contextlib.suppress(*LOG_FAULTS):
                action()
        else:
            self.write(log, action)


@contextmanager
def quiet_board_thread() -> Iterator[None]:
    """Within: TensorBoard's thread dies of a full disk without a traceback; its fault is raised where it is fed."""
    former = threading.excepthook

    def told(fault: threading.ExceptHookArgs) -> None:
        if not (type(fault.thread).__name__ == _BOARD_THREAD and isinstance(fault.exc_value, LOG_FAULTS)):
            former(fault)

    threading.excepthook = told
    try:
        yield
    finally:
        threading.excepthook = former
