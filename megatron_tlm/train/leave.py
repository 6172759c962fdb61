"""The end of a rank that failed: what it says, and its exit code."""

import os
import sys
import traceback
from typing import NoReturn

import torch

from megatron_tlm.errors import TlmError
from megatron_tlm.train.agree import AgreedError, sentence

USER_ERROR, OTHER_ERROR = 2, 1

# What gloo and NCCL say on the ranks that did nothing wrong when another one has gone.
LOST_PEERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")


def leave(error: BaseException, rank: int) -> NoReturn:
    """Says what happened and ends the process: its peers' connections close, which ends them too."""
    code = USER_ERROR if isinstance(error, TlmError) else OTHER_ERROR
    if isinstance(error, AgreedError):
        if rank == 0:
            _tell(str(error))
    elif isinstance(error, TlmError):
        _tell(f"rank {rank}: {error}")
    elif isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEERS):
        _tell(f"rank {rank}: lost its peers ({str(error).splitlines()[0][:200]})")
    elif isinstance(error, torch.OutOfMemoryError):
        _tell(
            f"rank {rank}: device memory = exhausted ({str(error).splitlines()[0][:200]}); lower --micro-batch-size, "
            "add --recompute-granularity full, or spread the model over more ranks"
        )
    elif isinstance(error, OSError):
        _tell(f"rank {rank}: {sentence(error)}")
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        _tell(f"rank {rank}: interrupted")
    else:
        sys.stderr.write(f"rank {rank}:\n")
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _tell(text: str) -> None:
    sys.stderr.write(f"megatron-tlm: error: {' '.join(text.split())}\n")
