"""Deleting old checkpoints, so that a kill in the middle leaves only whole ones and rubbish with another name."""

import os
import shutil
from pathlib import Path

from megatron_tlm.checkpoint.load import check_complete
from megatron_tlm.checkpoint.root import read_pointer, step_directories, step_of
from megatron_tlm.checkpoint.tensor_file import sync_directory
from megatron_tlm.errors import CheckpointError


def sweep(root: Path) -> None:
    """Removes what killed saves and deletions left, never a checkpoint; for who holds the folder's lock."""
    for rubbish in (*root.glob(".step-*.partial"), *root.glob(".step-*.deleted")):
        shutil.rmtree(rubbish, ignore_errors=True)
    for former in root.glob(".step-*.replaced"):
        # Without the one that was to take its name it is the checkpoint of its step.
        if (root / former.name.removeprefix(".").removesuffix(".replaced")).is_dir():
            shutil.rmtree(former, ignore_errors=True)


def prune(root: Path, keep: int, *, every: int | None = None) -> tuple[Path, ...]:
    """Deletes all but the `keep` complete checkpoints saved last and every `every`-th step; what went, last first.

    Damaged ones are left for a person to look at and do not count. What `latest` names is never deleted.
    """
    if keep < 1:
        raise CheckpointError(f"keep_last = {keep} would delete every checkpoint; give 1 or more")
    for rubbish in root.glob(".step-*.deleted"):
        shutil.rmtree(rubbish, ignore_errors=True)
    pointer = read_pointer(root)
    kept, gone = 0, []
    for directory in step_directories(root):
        try:
            check_complete(directory)
        except CheckpointError:
            continue
        kept += 1
        milestone = every is not None and (step_of(directory) or 0) % every == 0
        if kept > keep and directory.name != pointer and not milestone:
            gone.append(directory)
    for directory in reversed(gone):
        leaving = root / f".{directory.name.lstrip('.')}.deleted"
        os.rename(directory, leaving)
        sync_directory(root)
        shutil.rmtree(leaving, ignore_errors=True)
    return tuple(gone)
