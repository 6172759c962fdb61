"""A run that its launcher starts again after a failure goes on by itself, whatever it was told at its first start."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.schema import Config

COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def starts_before(environment: Mapping[str, str] | None = None) -> int:
    """How often torchrun started this process anew, and Slurm its job; 0 without either."""
    given = os.environ if environment is None else environment
    return sum(int(given[name]) for name in COUNTS if given.get(name, "").isdecimal())


def agreed_starts(meeting: Meeting) -> int:
    """The largest of all ranks': the nodes' own torchruns count apart, and only those that saw a failure."""
    count: int = meeting.decide("starts", starts_before(), lambda counts: max(count or 0 for count in counts))
    return count


def after_restart(config: Config, meeting: Meeting, starts: int) -> tuple[Config, tuple[str, ...]]:
    """The configuration of a start that has `starts` before it, and what to tell of that.

    What was saved since the first start outweighs all that says where to start: no checkpoint of this run is ever
    passed over for an older one, or for none.
    """
    checkpoint = config.checkpoint
    if not starts:
        return config, ()
    told = f"start {starts + 1} of this run"
    if checkpoint.save is None:
        return config, (f"{told}: nothing is saved without --save DIR, so it begins as it did at first",)
    holds = bool(step_directories(Path(checkpoint.save)))
    if not meeting.decide("saved", holds, lambda answers: any(answers)):
        return config, (f"{told}: {checkpoint.save} holds no checkpoint yet, so it begins as it did at first",)
    own = replace(checkpoint, load=checkpoint.save, ckpt_step=None, finetune=False, no_load_optim=False)
    return replace(config, checkpoint=own), (f"{told}: it goes on from {checkpoint.save}",)
