"""The folders that a run names: there, writable, on what kind of disk, and with room for its checkpoints."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from megatron_tlm.checkpoint.folder import way_out
from megatron_tlm.config.schema import Config
from megatron_tlm.doctor.finding import Finding, failed, passed, warned
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.refusal import gibibytes

MOMENT_BYTES, MASTER_BYTES = 8, 4
# Of a network file system's clock against this node's: what rounding and a slow answer may make.
CLOCK_SECONDS = 5.0
WRITTEN = (
    ("checkpoint", "save"),
    ("logging", "log_dir"),
    ("logging", "tensorboard_dir"),
    ("data", "data_cache_path"),
)
_IN_MEMORY = ("tmpfs", "ramfs")


def written_folders(config: Config) -> dict[str, Path]:
    """Address -> folder, of all that the run writes in."""
    given = {f"{section}.{name}": getattr(getattr(config, section), name) for section, name in WRITTEN}
    return {address: Path(value) for address, value in given.items() if value is not None}


def folder_findings(config: Config, plan: Plan | None, steps: int | None) -> Iterator[Finding]:
    """`plan` and `steps`, where they are known, say how much room the checkpoints take."""
    for address, folder in written_folders(config).items():
        yield from writable(address, folder)
    if config.checkpoint.load is not None:
        load = Path(config.checkpoint.load)
        there = load.is_dir() or config.checkpoint.allow_fresh_start
        yield (
            passed("checkpoint.load", f"{load} {'is there' if load.is_dir() else 'is empty, as allowed'}")
            if there
            else failed(
                "checkpoint.load", f"{load} does not exist on this node", "mount it here, or give another folder"
            )
        )
    if config.checkpoint.save is not None and plan is not None:
        yield room(config, plan, steps)


def writable(address: str, folder: Path) -> Iterator[Finding]:
    """Makes the folder, writes a file and takes it away again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            ahead = os.stat(file.name).st_mtime - time.time()
    except OSError as error:
        yield failed(address, f"{folder} cannot be written ({error.strerror})", way_out(error))
        return
    kind = file_system(folder)
    free = gibibytes(shutil.disk_usage(folder).free)
    if address == "checkpoint.save" and kind in _IN_MEMORY:
        yield warned(
            address, f"{folder} is memory ({kind}), {free} free", "give a folder on a disk; this one goes with the node"
        )
    else:
        yield passed(address, f"{folder} is writable, {kind}, {free} free")
    if abs(ahead) > CLOCK_SECONDS:
        yield warned(
            "clock",
            f"the disk of {folder} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this node",
            "start chronyd or ntpd on both",
        )


def checkpoint_bytes(config: Config, plan: Plan) -> int:
    """One checkpoint, near enough to plan a disk: weights, masters where those are not float32, two moments."""
    weights = 2 + MASTER_BYTES if config.training.bf16 else 4
    if config.checkpoint.no_save_optim:
        return plan.parameters * (2 if config.training.bf16 else 4)
    return plan.parameters * (weights + MOMENT_BYTES)


def room(config: Config, plan: Plan, steps: int | None) -> Finding:
    """Whether the checkpoints that will be kept fit beside the one being written."""
    wanted = config.checkpoint
    assert wanted.save is not None
    one, free = checkpoint_bytes(config, plan), shutil.disk_usage(_existing(Path(wanted.save))).free
    saves = max(1, (steps or 0) // wanted.save_interval) if wanted.save_interval else 1
    kept = saves
    if wanted.keep_last is not None:
        forever = (steps or 0) // wanted.keep_every if wanted.keep_every else 0
        kept = min(saves, wanted.keep_last + forever)
    # One more: a checkpoint is deleted when the next is whole.
    needed = one * min(kept + 1, saves)
    text = f"{kept} checkpoint{'s' if kept > 1 else ''} of {gibibytes(one)}, {gibibytes(free)} free"
    if needed <= free:
        return passed("room for checkpoints", text)
    if free < one * min(2, saves):
        return failed("room for checkpoints", text, "make room, or give --save a folder on a larger disk")
    if wanted.keep_last is not None:
        return failed("room for checkpoints", text, f"make room, or keep fewer than --keep-last {wanted.keep_last}")
    return warned(
        "room for checkpoints", f"{text}: full after {free // one}", f"give --keep-last {max(1, free // one - 1)}"
    )


def file_system(folder: Path) -> str:
    """The kind of disk that a folder lies on, such as ext4, nfs4, lustre, tmpfs."""
    place, best, kind = str(folder.resolve()), "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for fields in map(str.split, mounts):
        point = fields[1].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.absolute().parent
    return folder
