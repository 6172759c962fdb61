"""The directory that holds a run's checkpoints: names, the pointer, the order of saving.

latest                       name of the checkpoint saved last
step-00000010/               a checkpoint: whole, because it appears by rename
.step-00000020.partial/      being written, or left by a kill
.step-00000010.replaced/     the former step 10 while a new one takes its name
.step-00000005.deleted/      on its way out
"""

import contextlib
import os
import re
from pathlib import Path

from megatron_tlm.checkpoint.manifest import MANIFEST_NAME
from megatron_tlm.checkpoint.tensor_file import sync_directory

POINTER_NAME = "latest"
_STEP = re.compile(r"step-(\d{8,18})")
_REPLACED = re.compile(r"\.(step-\d{8,18})\.replaced")
_ORDINAL = re.compile(rb'"ordinal": (\d{1,18})')


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def partial_path(root: Path, step: int) -> Path:
    return root / f".{step_name(step)}.partial"


def replaced_path(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def step_of(directory: Path) -> int | None:
    """The step that a checkpoint's directory is named after; None for a directory of another name."""
    match = _STEP.fullmatch(directory.name)
    if not match and (replaced := _REPLACED.fullmatch(directory.name)):
        match = _STEP.fullmatch(replaced[1])
    return int(match[1]) if match else None


def step_directories(root: Path) -> list[Path]:
    """Every directory of a step, whole or not, saved last first.

    A former checkpoint counts while the one that was to take its name is not there: a kill between the two renames.
    """
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _STEP.fullmatch(path.name) and path.is_dir()]
    names = {path.name for path in found}
    for path in root.iterdir():
        match = _REPLACED.fullmatch(path.name)
        if match and match[1] not in names:
            found.append(path)
    return sorted(found, key=lambda path: (read_ordinal(path), step_of(path) or 0), reverse=True)


def read_ordinal(directory: Path) -> int:
    """How many saves of this root came before, read from the manifest's first lines; -1 where there is none."""
    try:
        with open(directory / MANIFEST_NAME, "rb") as file:
            match = _ORDINAL.search(file.read(512))
    except OSError:
        return -1
    return int(match[1]) if match else -1


def read_pointer(root: Path) -> str | None:
    """The name in `latest`; None without the file. Whether it names a checkpoint is for the caller to see."""
    try:
        return (root / POINTER_NAME).read_bytes()[:200].decode(errors="replace").strip()
    except OSError:
        return None


def write_durably(path: Path, text: bytes) -> None:
    """The file is on the disk, whole, before its name is: written aside, synced, renamed."""
    aside = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    with open(aside, "xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_directory(path.parent)
