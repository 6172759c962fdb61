"""What a rank owes the torchrun that started it: a word when it fails, and not to outlive it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LAUNCHED = "TORCHELASTIC_RUN_ID"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
NOT_RETRYABLE = "False"
# What the kernel of Linux tells a rank when its torchrun dies. A signal of its own: torchrun sends SIGTERM to stop
# ranks, and getppid() says nothing yet, for the threads of a process die one after the other.
LAUNCHER_GONE = signal.SIGRTMIN if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
# $1 the rank, $2 its launcher, $3 seconds
_WATCH = """\
n=0
while [ -e "/proc/$1" ] && [ "$n" -lt "$3" ]; do sleep 1; n=$((n + 1)); done
grep -qs '^State:.Z' "/proc/$1/status" && kill -KILL "$2"
"""


def leave_word(line: str, *, for_good: bool = False) -> None:
    """Write the file that torch's own `record` decorator would: torchrun's closing summary then has the line.

    `for_good`: no restart mends it. torch has a word for that and starts again all the same; `ended_for_good` reads it.
    """
    target = os.environ.get(ERROR_FILE)
    if not target:
        return
    failure: dict[str, Any] = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
    if for_good:
        failure["errorTraits"] = {"category": "user_error", "retryability": NOT_RETRYABLE}
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text(json.dumps(failure), encoding="utf-8")
    except OSError:
        return  # a launcher that cannot collect the message still sees the exit code


def ended_for_good() -> str | None:
    """What this node's ranks ended with when torchrun started them last, if it was for good; None otherwise."""
    target, count = os.environ.get(ERROR_FILE), restart_count()
    if not target or not count:
        return None
    # One folder for each start of the node's ranks, one within for each rank.
    for file in sorted(Path(target).parents[1].with_name(f"attempt_{count - 1}").glob("*/error.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["errorTraits"]["retryability"] == NOT_RETRYABLE:
                return str(told["message"]["message"])
    return None


def claim_first_word() -> bool:
    """Whether nobody else of this node's ranks has asked before; always, where torchrun did not start them."""
    target = os.environ.get(ERROR_FILE)
    if not target:
        return True
    try:
        # torchrun gives every rank a folder of its own, within one for each start of the node's ranks.
        (Path(target).parent.parent / "first-word").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def stop_with_launcher() -> None:
    """Have the kernel send this process LAUNCHER_GONE when its torchrun dies: one that is killed stops no workers.

    A run then saves and leaves, anything else ends. Linux only; what torchrun did not start is left alone.
    """
    if LAUNCHED in os.environ and LAUNCHER_GONE is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, LAUNCHER_GONE, 0, 0, 0)


def end_stuck_launcher(seconds: int = 30) -> None:
    """To be called by a rank that ends because its node is cut off: kills its torchrun if that is cut off as well.

    Such a torchrun waits, deaf to SIGTERM, for an answer of its rendezvous until the kernel gives the connection up, a
    quarter of an hour. A living one collects a rank that has ended within seconds; this one leaves it a zombie, which
    is what a small shell waits to see. Linux only, and only where torchrun started this process.
    """
    if LAUNCHED not in os.environ or sys.platform != "linux":
        return
    words = [str(os.getpid()), str(os.getppid()), str(seconds)]
    with suppress(OSError):
        subprocess.Popen(
            ["sh", "-c", _WATCH, "watch", *words],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def restart_count() -> int:
    """How often torchrun has started this run again; 0 without torchrun."""
    return int(os.environ.get(RESTARTS) or 0)
