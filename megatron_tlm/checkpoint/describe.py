"""What a checkpoint is and what it lacks, from its manifest and its files' lengths and hashes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from megatron_tlm.checkpoint.facts import facts_to_json
from megatron_tlm.checkpoint.load import check_hashes, file_faults, find
from megatron_tlm.checkpoint.manifest import MANIFEST_NAME, Manifest, TensorId, read_manifest
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.units import Unit, build_units

WEIGHT, MASTER = "weight", "master"


@dataclass(frozen=True)
class RoleSummary:
    """All tensors of one role: how many, of which dtypes, how many bytes."""

    role: str
    tensors: int
    dtypes: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class Description:
    """One checkpoint; `faults` are sentences on its files, `absent` tensors that others of its kind have.

    `hashed` where faults in the files' contents would have been seen.
    """

    path: Path
    manifest: Manifest
    faults: tuple[str, ...]
    hashed: bool

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        return build_units(self.manifest.facts.shape)

    @property
    def parameters(self) -> int:
        """Numbers in the model, each once, vocabulary padding left out."""
        return sum(unit.num_parameters for unit in self.units)

    @cached_property
    def roles(self) -> tuple[RoleSummary, ...]:
        """Weights first, the others by name."""
        names = sorted({role for _, role in self.manifest.tensors}, key=lambda role: (role != WEIGHT, role))
        return tuple(self._role(role) for role in names)

    def _role(self, role: str) -> RoleSummary:
        records = [record for (_, found), record in self.manifest.tensors.items() if found == role]
        dtypes = tuple(sorted({record.dtype for record in records}))
        return RoleSummary(role, len(records), dtypes, sum(record.size_bytes for record in records))

    @cached_property
    def absent(self) -> tuple[TensorId, ...]:
        """Parameters without a state that most parameters have; what has only weights lacks nothing of this kind."""
        names = [spec.name for unit in self.units for spec in unit.parameters]
        common = [
            role for role, count in Counter(role for _, role in self.manifest.tensors).items() if 2 * count > len(names)
        ]
        return tuple((name, role) for name in names for role in common if (name, role) not in self.manifest.tensors)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person about to continue from it should know beside faults."""
        roles = {summary.role: summary for summary in self.roles}
        notes = []
        if set(roles) <= {WEIGHT, MASTER}:
            notes.append("no optimizer state: continue with --no-load-optim or --finetune")
        if MASTER not in roles and roles[WEIGHT].dtypes != ("F32",):
            notes.append("no float32 masters: training goes on from the rounded weights")
        if self.manifest.tokenizer is None:
            notes.append("no tokenizer")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """What `megatron-tlm inspect --json` prints."""
        manifest = self.manifest
        return {
            "path": str(self.path),
            **facts_to_json(manifest.facts),
            "parameters": self.parameters,
            "size_bytes": manifest.size_bytes,
            "tokenizer": manifest.tokenizer,
            "roles": [
                {"role": item.role, "tensors": item.tensors, "dtypes": list(item.dtypes), "bytes": item.size_bytes}
                for item in self.roles
            ],
            "files": {name: record.size_bytes for name, record in manifest.files.items()},
            "complete": not self.faults and not self.absent,
            "faults": list(self.faults),
            "absent": [f"{role}/{name}" for name, role in self.absent],
            "notes": list(self.notes),
        }


def describe(root: Path, step: int | None = None, *, tell: Callable[[str], None], hashes: bool = True) -> Description:
    """The checkpoint that `find` would load, else the newest that can be described at all, with its faults.

    `hashes` as in `find`. CheckpointError where no manifest can be read.
    """
    root = Path(root)
    try:
        path = find(root, step, tell=tell, hashes=hashes)
    except CheckpointError:
        path = _newest_readable(root, step)
        manifest = read_manifest(path)
        faults = tuple(file_faults(path, manifest))
        if hashes and not faults:
            faults = _contents_fault(path, manifest)
        return Description(path, manifest, faults, hashed=hashes)
    return Description(path, read_manifest(path), (), hashed=hashes)


def _contents_fault(path: Path, manifest: Manifest) -> tuple[str, ...]:
    """The first file of full length that is not what was written."""
    try:
        check_hashes(path, manifest)
    except CheckpointError as fault:
        return (str(fault),)
    return ()


def _newest_readable(root: Path, step: int | None) -> Path:
    """A checkpoint that is not complete but has a manifest; the reason why there is none otherwise."""
    if (root / MANIFEST_NAME).exists():
        return root
    for directory in step_directories(root):
        try:
            manifest = read_manifest(directory)
        except CheckpointError:
            continue
        if step in (None, manifest.facts.step):
            return directory
    return find(root, step)
