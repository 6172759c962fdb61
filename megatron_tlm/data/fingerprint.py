"""What the order of training samples depends on, as a few values to keep in a checkpoint and to compare on resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.errors import DataError

Scalar = int | float | str | bool | None
PREFIX = "data."
PLANNED = "data.planned_samples"

_MEANINGS = {
    "data.kind": "the kind of data",
    "data.seed": "training.seed",
    "data.seq_length": "model.seq_length",
    "data.split": "data.split",
    "data.weights": "the weights of the blend",
    "data.num_corpora": "the number of corpora",
}


@dataclass(frozen=True)
class Fingerprint:
    """Equal for runs that read the same samples in the same order; paths are told, never compared.

    `planned_samples`: the length of run that the order was made for. A run that grew longer keeps the old plan.
    """

    values: Mapping[str, Scalar]
    paths: tuple[str, ...]

    @property
    def planned_samples(self) -> int:
        return int(self.values[PLANNED] or 0)

    def changes(self, before: Mapping[str, Scalar]) -> tuple[str, ...]:
        """What differs from the values in a checkpoint, in words; nothing for a checkpoint without any."""
        if not any(name.startswith(PREFIX) for name in before):
            return ()
        told = []
        for name, now in self.values.items():
            then = before.get(name)
            if name == PLANNED or now == then:
                continue
            if name.startswith("data.corpus_"):
                number = int(name.removeprefix("data.corpus_"))
                if then is not None:
                    told.append(f"corpus {number + 1} ({self.paths[number]}) holds other tokens")
            else:
                told.append(f"{_MEANINGS.get(name, name)} {then} is now {now}")
        return tuple(told)

    def check(self, before: Mapping[str, Scalar], source: str) -> None:
        """DataError naming every change since the checkpoint `source` was saved."""
        if changes := self.changes(before):
            raise DataError(
                f"data = other than those of {source} ({'; '.join(changes)}); give what that run had, or "
                "--allow-data-change to go on with these"
            )


def build_fingerprint(
    kind: str,
    corpora: Sequence[IndexedDataset],
    weights: Sequence[float] | None,
    *,
    seed: int,
    seq_length: int,
    split: str,
    planned_samples: int,
) -> Fingerprint:
    """Of one split's corpora, in the order of the blend."""
    values: dict[str, Scalar] = {
        "data.kind": kind,
        "data.seed": seed,
        "data.seq_length": seq_length,
        "data.split": split,
        "data.weights": " ".join(f"{weight:.12g}" for weight in weights or ()),
        "data.num_corpora": len(corpora),
        PLANNED: planned_samples,
    }
    values |= {f"data.corpus_{number}": corpus.digest for number, corpus in enumerate(corpora)}
    return Fingerprint(values, tuple(corpus.prefix for corpus in corpora))
