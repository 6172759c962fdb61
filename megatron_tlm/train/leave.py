"""The end of a rank that failed: what it says, and its exit code."""

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import torch

from megatron_tlm.comm.torchrun import leave_word
from megatron_tlm.errors import TlmError
from megatron_tlm.train.agree import AgreedError, sentence

USER_ERROR, OTHER_ERROR = 2, 1

# What gloo and NCCL say on the ranks that did nothing wrong when another one has gone.
LOST_PEERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")


def leave(error: BaseException, rank: int) -> NoReturn:
    """Says what happened and ends the process: its peers' connections close, which ends them too."""
    code = USER_ERROR if isinstance(error, TlmError) else OTHER_ERROR
    line = _line(error, rank)
    if not _lost_peers(error):
        # torchrun shows the first word alone, and counts in seconds: it shall be that of the rank at fault.
        leave_word(line)
    # The console may be a file, on the disk that is full.
    with suppress(OSError):
        if not isinstance(error, AgreedError) or rank == 0:
            _tell(error, rank, line)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _line(error: BaseException, rank: int) -> str:
    """The one sentence of any end."""
    if isinstance(error, AgreedError):
        text = str(error)
    elif isinstance(error, TlmError):
        text = f"rank {rank}: {error}"
    elif _lost_peers(error):
        text = f"rank {rank}: lost its peers ({str(error).splitlines()[0][:200]})"
    elif isinstance(error, torch.OutOfMemoryError):
        text = (
            f"rank {rank}: device memory = exhausted ({str(error).splitlines()[0][:200]}); lower --micro-batch-size, "
            "add --recompute-granularity full, or spread the model over more ranks"
        )
    elif isinstance(error, OSError):
        text = f"rank {rank}: {sentence(error)}"
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"rank {rank}: interrupted"
    else:
        text = f"rank {rank}: {type(error).__name__}: {error}"
    return " ".join(text.split())


def _lost_peers(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEERS)


def _tell(error: BaseException, rank: int, line: str) -> None:
    mended = TlmError | torch.OutOfMemoryError | OSError | SystemExit | KeyboardInterrupt
    if isinstance(error, mended) or _lost_peers(error):
        sys.stderr.write(f"megatron-tlm: error: {line}\n")
    else:
        sys.stderr.write(f"rank {rank}:\n")
        traceback.print_exception(error)
