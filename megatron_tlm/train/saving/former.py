"""What a former run left where a new one is about to write: nothing of it is overwritten, deleted or mixed in.

log_dir/metrics.jsonl     -> metrics.1.jsonl, and config.yaml and loss.png likewise
tensorboard/events...     -> tensorboard/former-1/events..., which TensorBoard shows as a run beside the new one
"""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from megatron_tlm.checkpoint.root import step_directories, step_of
from megatron_tlm.config.schema import CheckpointConfig
from megatron_tlm.errors import CheckpointError


def check_save_folder(config: CheckpointConfig, source: Path | None) -> None:
    """CheckpointError where `save` holds checkpoints that the run does not continue; `source` is what it starts from.

    Mixed in one folder, which of them are continued, and which `keep_last` deletes, would be a matter of chance.
    """
    if config.save is None:
        return
    root = Path(config.save)
    saved = step_directories(root)
    continues = source is not None and not config.finetune and source.resolve().parent == root.resolve()
    if not saved or continues:
        return
    begin = "from scratch" if source is None else f"from {source}"
    what = "fine-tunes" if source is not None and config.finetune else "starts"
    raise CheckpointError(
        f"checkpoint.save = {root} holds {len(saved)} checkpoint{'s' if len(saved) > 1 else ''} already, the newest of "
        f"step {step_of(saved[0])}, and this run {what} {begin}; "
        f"add --load {root} to go on from there{_without(config)}, or give --save another folder"
    )


def _without(config: CheckpointConfig) -> str:
    """What has to go for that."""
    if config.finetune:
        return " without --finetune"
    return "" if config.load is None else f" in place of --load {config.load}"


def set_aside_logs(folder: Path, names: Sequence[str]) -> str | None:
    """Gives the files of a former run a number, all the same one, and says so; None where the first is not there."""
    first = folder / names[0]
    if not first.is_file() or not first.stat().st_size:
        return None
    number = next(n for n in count(1) if not any(_numbered(folder / name, n).exists() for name in names))
    for name in names:
        if (folder / name).is_file():
            os.rename(folder / name, _numbered(folder / name, number))
    return f"{first} of a former run is now {_numbered(first, number).name}"


def set_aside_events(folder: Path, inner: str) -> None:
    """Moves a former run's event files, and those of its `inner` folder, into a folder of their own."""
    events = [path for place in (folder, folder / inner) for path in place.glob("events.out.tfevents.*")]
    if not events:
        return
    target = next(path for n in count(1) if not (path := folder / f"former-{n}").exists())
    for path in events:
        place = target / path.parent.relative_to(folder)
        place.mkdir(parents=True, exist_ok=True)
        os.rename(path, place / path.name)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")
