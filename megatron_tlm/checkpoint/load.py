"""Loading: the newest whole checkpoint of a directory, and any box of any of its tensors.

No layout is asked for and none is assumed: a box is put together from the pieces that meet it, whoever saved them.
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import torch

from megatron_tlm.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    PieceRecord,
    TensorId,
    TensorRecord,
    read_manifest,
)
from megatron_tlm.checkpoint.root import read_pointer, step_directories, step_name, step_of
from megatron_tlm.checkpoint.tensor_file import DTYPES, FileRecord, TensorFile, hash_file, volume
from megatron_tlm.checkpoint.tiling import Extent, box_text
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import overlap

_log = logging.getLogger(__name__)
_NONE: Mapping[Path, str] = MappingProxyType({})


def check_complete(directory: Path) -> Manifest:
    """The manifest of a checkpoint all of whose files are there at full length; CheckpointError says what is not.

    Lengths are looked at, not contents: `check_hashes` reads every byte.
    """
    manifest = read_manifest(directory)
    step = step_of(directory)
    if step is not None and step != manifest.facts.step:
        raise CheckpointError(
            f"{directory.name}/{MANIFEST_NAME}: step = {manifest.facts.step} but the directory is named after {step}; "
            "give it its own name back"
        )
    for fault in file_faults(directory, manifest):
        raise CheckpointError(fault)
    return manifest


def file_faults(directory: Path, manifest: Manifest) -> Iterator[str]:
    """A sentence for every file that is not there as it was written: missing, elsewhere or of another length."""
    home = directory.resolve()
    for name, record in manifest.files.items():
        path = directory / name
        if not path.is_file():
            yield f"{path} is missing but the manifest names it; use another step"
        elif path.resolve().parent != home:
            yield f"{path} is a link to {path.resolve()}, outside the checkpoint; put the file itself there"
        elif (size_bytes := path.stat().st_size) != record.size_bytes:
            said = record.size_bytes
            yield f"{path} has {size_bytes} bytes but the manifest says {said}; it was cut, use another step"


def check_hashes(directory: Path, manifest: Manifest, *, rank: int = 0, ranks: int = 1) -> None:
    """CheckpointError for the first file whose contents are not those that were written.

    Of `ranks` that share the work each reads every `ranks`-th file, in a few threads.
    """
    names = list(manifest.files)[rank::ranks]

    def contents(name: str) -> FileRecord:
        with readable(directory / name):
            return hash_file(directory / name)

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for name, found in zip(names, pool.map(contents, names), strict=True):
            record = manifest.files[name]
            if found != record:
                pool.shutdown(cancel_futures=True)
                raise CheckpointError(
                    f"{directory / name}: sha256 = {found.sha256} but {record.sha256} was written; "
                    "the file was damaged since, use another step"
                )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """A disk that cannot give a file back is told as a CheckpointError, so that another step may be tried."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); use another step") from error


def find(
    root: Path,
    step: int | None = None,
    *,
    tell: Callable[[str], None] = _log.warning,
    hashes: bool = True,
    damaged: Mapping[Path, str] = _NONE,
) -> Path:
    """The checkpoint to load: that of `step`, else the one saved last that is whole.

    `root` may also be a checkpoint itself. `tell` hears, a sentence each, which directories were passed over and why.
    Every byte is read for `hashes`, about a second per GB and thread; without, lengths alone are looked at. `damaged`
    are checkpoints already known not to be whole, and why. CheckpointError where there is nothing to load: never a
    silent start from scratch.
    """
    root = Path(root)

    def check(directory: Path) -> Manifest:
        if directory in damaged:
            raise CheckpointError(damaged[directory])
        manifest = check_complete(directory)
        if hashes:
            check_hashes(directory, manifest)
        return manifest

    if (root / MANIFEST_NAME).exists():
        manifest = check(root)
        if step not in (None, manifest.facts.step):
            raise CheckpointError(
                f"{root} is the checkpoint of step {manifest.facts.step}, not {step}; give its parent"
            )
        return root
    directories = step_directories(root)
    if not directories:
        raise CheckpointError(_nothing_in(root))
    if step is not None:
        chosen = [directory for directory in directories if step_of(directory) == step]
        if not chosen:
            steps = ", ".join(str(number) for number in sorted(step_of(directory) or 0 for directory in directories))
            raise CheckpointError(f"ckpt_step = {step} is not in {root}; it has {steps}")
        check(chosen[0])
        return chosen[0]
    return _newest_whole(root, directories, check, tell)


def _newest_whole(
    root: Path, directories: list[Path], check: Callable[[Path], Manifest], tell: Callable[[str], None]
) -> Path:
    faults = []
    for directory in directories:
        try:
            check(directory)
        except CheckpointError as fault:
            faults.append(str(fault))
            tell(f"passed over {directory.name}: {fault}")
            continue
        for later in directories:
            if (step_of(later) or 0) > (step_of(directory) or 0) and later not in directories[: len(faults)]:
                tell(f"passed over {later.name}: it was saved before {directory.name}, the run went back since")
        pointer = read_pointer(root)
        if pointer != directory.name:
            said = _shown(pointer) if pointer else "nothing"
            tell(f"{root / 'latest'} says {said}; loading {directory.name}, the newest complete one")
        return directory
    raise CheckpointError(f"{root} holds no complete checkpoint; {'; '.join(faults)}")


def _shown(text: str) -> str:
    """What a file says, fit for one line of a terminal whatever it holds."""
    escaped = text if text.isprintable() else text.encode("unicode_escape").decode()
    return escaped if len(escaped) <= 60 else escaped[:57] + "..."


def _nothing_in(root: Path) -> str:
    if not root.is_dir():
        return f"{root} is not a directory, so nothing can be loaded; give the directory that a run saved into"
    unfinished = sorted(path.name for path in root.glob(".step-*.partial"))
    found = f"only {', '.join(unfinished)}, never finished" if unfinished else f"no {step_name(0)[:5]}* directory"
    return (
        f"{root} holds {found}, so there is no checkpoint; give the directory that a run saved into or leave out load"
    )


def require_shape(path: Path, manifest: Manifest, shape: ModelShape) -> None:
    """CheckpointError naming every field in which the saved model differs from the wanted one."""
    differences = manifest.facts.shape.differences(shape)
    if differences:
        raise CheckpointError(
            f"{path} is a checkpoint of another model: {', '.join(differences)}; "
            "give the saved sizes or load another checkpoint"
        )


class Reader:
    """One complete checkpoint, opened: `manifest` for the facts, `read` for tensors. Safe to share among threads."""

    def __init__(self, path: Path, *, open_files: int = 64) -> None:
        self.path = Path(path)
        self.manifest = check_complete(self.path)
        self._roles: dict[str, tuple[str, ...]] = {}
        for name, role in self.manifest.tensors:
            self._roles[name] = (*self._roles.get(name, ()), role)
        self._open_files = open_files
        self._files: OrderedDict[str, TensorFile] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file that was saved along."""
        return self.path / self.manifest.tokenizer if self.manifest.tokenizer else None

    def require(self, shape: ModelShape) -> None:
        """CheckpointError naming every field in which the saved model differs from the wanted one."""
        require_shape(self.path, self.manifest, shape)

    def roles(self, name: str) -> tuple[str, ...]:
        """The roles saved for a tensor; empty for a name that is not there."""
        return self._roles.get(name, ())

    def record(self, name: str, role: str) -> TensorRecord:
        """Dtype, global shape and pieces; CheckpointError for a tensor that was not saved."""
        record = self.manifest.tensors.get((name, role))
        if record is None:
            roles = ", ".join(self.roles(name)) or "nothing of it"
            raise CheckpointError(f"{self.path} lacks {role}/{name}, saved was {roles}; load without that state")
        return record

    def read(
        self,
        name: str,
        role: str,
        offset: Extent | None = None,
        size: Extent | None = None,
        *,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The box [offset, offset + size) of a global tensor, by default all of it, in the saved dtype.

        A new tensor, or `into`, a flat buffer of that dtype with room for the box, of which the result is a view.
        """
        record = self.record(name, role)
        offset = (0,) * len(record.shape) if offset is None else tuple(offset)
        size = tuple(a - b for a, b in zip(record.shape, offset, strict=False)) if size is None else tuple(size)
        fits = len(offset) == len(size) == len(record.shape) and all(
            start >= 0 and extent >= 0 and start + extent <= whole
            for start, extent, whole in zip(offset, size, record.shape, strict=False)
        )
        if not fits:
            box = box_text(offset, size[: len(offset)])
            raise CheckpointError(
                f"{role}/{name}{box} is outside the saved shape {list(record.shape)}; ask for a box inside"
            )
        flat = torch.empty(volume(size), dtype=DTYPES[record.dtype]) if into is None else into[: volume(size)]
        result = flat.view(size)
        for piece in record.pieces:
            self._copy_common(result, (name, role), piece, offset, size)
        return result

    def close(self) -> None:
        with self._lock:
            self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _copy_common(
        self, result: torch.Tensor, tensor: TensorId, piece: PieceRecord, offset: Extent, size: Extent
    ) -> None:
        common = overlap(offset, size, piece.offset, piece.size)
        if common is None:
            return
        start, extent = common
        entry = self.manifest.entry(tensor, piece)
        file = self._file(piece.file)
        found = file.entry(entry.key)
        if found != entry:
            raise CheckpointError(
                f"{file.path}: {entry.key} = {found.dtype} {list(found.shape)} but the manifest says {entry.dtype} "
                f"{list(entry.shape)}; the file is another's, use another step"
            )
        inner = tuple(a - b for a, b in zip(start, piece.offset, strict=True))
        target = tuple(slice(a - b, a - b + n) for a, b, n in zip(start, offset, extent, strict=True))
        result[target].copy_(file.read(entry.key, inner, extent))

    def _file(self, name: str) -> TensorFile:
        with self._lock:
            if name not in self._files:
                if len(self._files) >= self._open_files:
                    self._files.popitem(last=False)
                self._files[name] = TensorFile(self.path / name)
            self._files.move_to_end(name)
            return self._files[name]
