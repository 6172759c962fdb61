"""An end for waits that know none: torch's store and the making of a process group block in the kernel when a cable is
pulled, for a quarter of an hour and without a look at any timeout.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from megatron_tlm.comm.torchrun import end_stuck_launcher, leave_word

GRACE = timedelta(seconds=10)  # torch's own timeouts come first, they know more
LOOK_SECONDS = 1.0
LOST_CONTACT = 1


@contextmanager
def ends_when_stuck(timeout: timedelta, what: str) -> Iterator[Callable[[], None]]:
    """Within: this process ends with a sentence and code 1 where `alive`, which is yielded, is not called for longer
    than the timeout and some grace; `what` it waited for."""
    seconds = (timeout + GRACE).total_seconds()
    last, done = [time.monotonic()], threading.Event()

    def watch() -> None:
        while not done.wait(min(LOOK_SECONDS, seconds / 4)):
            if time.monotonic() - last[0] > seconds:
                _leave(what, seconds)

    def alive() -> None:
        last[0] = time.monotonic()

    threading.Thread(target=watch, name="ends-when-stuck", daemon=True).start()
    try:
        yield alive
    finally:
        done.set()


def _leave(what: str, seconds: float) -> None:
    line = (
        f"rank {os.environ.get('RANK', '0')} on {socket.gethostname()}: {what} = no answer for {seconds:g} s; a node "
        "or its link is gone, see which with `megatron-tlm doctor`"
    )
    leave_word(line)
    end_stuck_launcher()
    with suppress(OSError):
        sys.stderr.write(f"megatron-tlm: error: {line}\n")
        sys.stderr.flush()
    os._exit(LOST_CONTACT)
