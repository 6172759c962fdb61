"""How a mistake is told when many ranks make it at once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from megatron_tlm.comm.torchrun import ERROR_FILE, claim_first_word, ended_for_good, leave_word, restart_count
from megatron_tlm.config.launch import read_launch
from megatron_tlm.errors import ConfigError, TlmError

USER_ERROR = 2


def report(error: TlmError) -> None:
    """Print the error's one line once a node; every rank also leaves it where torchrun collects failures.

    All ranks read the same configuration and fail alike, so one voice is enough: that of the first to fail, for
    torchrun ends the others at once. Where another launcher started them it is rank 0's.
    """
    line = " ".join(str(error).split())
    if claim_first_word() if ERROR_FILE in os.environ else is_first_rank():
        print(f"megatron-tlm: error: {line}", file=sys.stderr, flush=True)
    # Nothing was wrong with the first start of a run that is at a later one: a disk may only be mounted late.
    leave_word(line, for_good=not error.passing and not restart_count())


@contextmanager
def words_for_other_nodes() -> Iterator[None]:
    """Within: a mistake that this node alone may have made, its run.yaml being another one, is told to all nodes.

    Their ranks wait for this one at the launcher's store, and would for the whole timeout.
    """
    try:
        yield
    except TlmError as error:
        _tell_other_nodes(" ".join(str(error).split()))
        raise


def ended_before() -> bool:
    """Whether this run ended for good before torchrun started it again; then that is left once more, without a word.

    torchrun counts its restarts down whatever a rank says, so all that can be spared is the time that each takes.
    """
    line = ended_for_good()
    if line is None:
        return False
    _tell_other_nodes(line)
    leave_word(line, for_good=True)
    return True


def _tell_other_nodes(line: str) -> None:
    launch = read_launch()
    if launch.local_rank == 0 and os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        # Only now: it takes the seconds of torch, and one node on its own has nobody to tell.
        from megatron_tlm.comm.meeting import leave_early_word

        leave_early_word(line, launch.rank, launch.world_size)


def is_first_rank() -> bool:
    """Whether this process is rank 0 of its launch, or no launcher started it."""
    try:
        launch = read_launch()
    except ConfigError:
        return True  # nobody can tell who is first, and the mistake has to be told
    return launch.rank == 0 and ("RANK" in os.environ or launch.local_rank == 0)
