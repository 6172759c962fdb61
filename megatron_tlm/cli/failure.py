"""How a mistake is told when many ranks make it at once."""

import json
import os
import sys
import time
from pathlib import Path

from megatron_tlm.errors import TlmError

USER_ERROR = 2


def report(error: TlmError) -> None:
    """Print the error's one line on rank 0; every rank also leaves it where torchrun collects failures.

    All ranks read the same configuration and fail alike, so one voice is enough. A mistake that only another rank
    can see (a file missing on one node) is in torchrun's closing summary, under its rank.
    """
    line = " ".join(str(error).split())
    if is_first_rank():
        print(f"megatron-tlm: error: {line}", file=sys.stderr, flush=True)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        _leave_for_torchrun(Path(path), line)


def is_first_rank() -> bool:
    """Whether this process is rank 0 of its launch, or no launcher started it."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _leave_for_torchrun(path: Path, line: str) -> None:
    """Write the file that torch's own `record` decorator would write on an uncaught exception."""
    failure = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(failure), encoding="utf-8")
    except OSError:
        return  # a launcher that cannot collect the message still sees the exit code
