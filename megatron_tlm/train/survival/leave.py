"""The end of a rank that failed: what it says, and its exit code."""

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import torch

from megatron_tlm.comm.torchrun import claim_first_word, end_stuck_launcher, leave_word
from megatron_tlm.errors import TlmError
from megatron_tlm.train.survival.agree import AgreedError, sentence
from megatron_tlm.train.survival.stop import LostLauncherError
from megatron_tlm.train.survival.whereabouts import Whereabouts

USER_ERROR, OTHER_ERROR = 2, 1

# What gloo and NCCL say on the ranks that did nothing wrong when another one has gone, or does not answer.
LOST_PEERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
SILENT_PEERS = ("Timed out waiting", "timed out", "Timeout(ms)")


def leave(error: BaseException, place: Whereabouts) -> NoReturn:
    """Says what happened and ends the process: its peers' connections close, which ends them too."""
    speak(error, place)
    if _is(SILENT_PEERS, error):
        end_stuck_launcher()
    mistake = isinstance(error, TlmError) and not isinstance(error, LostLauncherError)
    os._exit(USER_ERROR if mistake else OTHER_ERROR)


def speak(error: BaseException, place: Whereabouts) -> None:
    """The last words, once; before files are closed, for torchrun gives the others no time once one rank has gone."""
    if place.spoken:
        return
    place.spoken = True
    line = last_words(error, place)
    if not _is(LOST_PEERS, error):
        # torchrun shows the first word alone, and counts in seconds: it shall be that of the rank at fault.
        leave_word(line, for_good=isinstance(error, TlmError) and not error.passing)
    # The console may be a file, on the disk that is full.
    with suppress(OSError):
        if _speaks(error, place):
            _tell(error, place, line)
        sys.stdout.flush()
        sys.stderr.flush()


def _speaks(error: BaseException, place: Whereabouts) -> bool:
    """Whether this rank's word is new: of those that only suffer from another's failure, one a node is enough."""
    if isinstance(error, AgreedError):
        return place.rank == 0
    first = claim_first_word()
    return first or not (_is(LOST_PEERS, error) or _is(SILENT_PEERS, error))


def last_words(error: BaseException, place: Whereabouts) -> str:
    """The one sentence of any end: who, where and in which step, and why."""
    if isinstance(error, AgreedError):
        text = str(error)
    elif isinstance(error, TlmError):
        text = f"{place}: {error}"
    elif _is(LOST_PEERS, error):
        text = f"{place}: lost its peers ({_first_line(error)})"
    elif _is(SILENT_PEERS, error):
        text = (
            f"{place}: a peer = silent for longer than --distributed-timeout-minutes allows ({_first_line(error)}); it "
            "hangs or cannot be reached, or raise the timeout if it is only slow"
        )
    elif isinstance(error, torch.OutOfMemoryError):
        text = (
            f"{place}: device memory = exhausted ({_first_line(error)}); lower --micro-batch-size, "
            "add --recompute-granularity full, or spread the model over more ranks"
        )
    elif isinstance(error, OSError):
        text = f"{place}: {sentence(error)}"
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"{place}: interrupted"
    else:
        text = f"{place}: {type(error).__name__}: {error}"
    return " ".join(text.split())


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200]


def _is(signs: tuple[str, ...], error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _tell(error: BaseException, place: Whereabouts, line: str) -> None:
    mended = TlmError | torch.OutOfMemoryError | OSError | SystemExit | KeyboardInterrupt
    if isinstance(error, mended) or _is(LOST_PEERS, error) or _is(SILENT_PEERS, error):
        sys.stderr.write(f"megatron-tlm: error: {line}\n")
    else:
        sys.stderr.write(f"{place}:\n")
        traceback.print_exception(error)
