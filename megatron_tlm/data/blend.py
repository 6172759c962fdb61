"""Several corpora as one: at every sample the corpus that is furthest behind its weight gives the next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.errors import DataError

SURPLUS = 0.005  # Megatron's: each corpus is built for half a percent more than its share
BLOCK = 1 << 14


@dataclass(frozen=True)
class Blend:
    """Corpora and their normalised weights; a single corpus without a weight is no blend."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None

    def targets(self, num_samples: int) -> tuple[int, ...]:
        """Samples wanted of each corpus."""
        return tuple(math.ceil(num_samples * weight) for weight in self.weights or (1.0,))

    def sizes(self, num_samples: int) -> tuple[int, ...]:
        """Samples to build of each corpus: the targets with Megatron's surplus."""
        return tuple(math.ceil(target * (1 + SURPLUS)) for target in self.targets(num_samples))


def parse_blend(words: Sequence[str], address: str = "data.data_path") -> Blend:
    """`prefix`, or `weight prefix weight prefix ...`; weights are normalised, corpora of weight 0 left out."""
    if len(words) == 1 and " " in words[0].strip():
        words = words[0].split()
    if len(words) == 1:
        return Blend((words[0],), None)
    if not words:
        raise DataError(f"{address} = () names no corpus; give a prefix of a .bin/.idx pair (or --mock-data)")
    shown = " ".join(words)
    if len(words) % 2:
        raise DataError(
            f"{address} = {shown!r} has {len(words)} words where weights and prefixes come in pairs; "
            "give a weight before every prefix"
        )
    weights = [_parse_weight(word, prefix, address) for word, prefix in zip(words[::2], words[1::2], strict=True)]
    prefixes = tuple(words[1::2])
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise DataError(f"{address} = {prefix!r} is given {prefixes.count(prefix)} times; add its weights up")
    if sum(weights) <= 0:
        raise DataError(f"{address} = {shown!r} has weights that sum to {sum(weights):g}; give one above 0")
    used = [(prefix, weight) for prefix, weight in zip(prefixes, weights, strict=True) if weight]
    normalised = np.array([weight for _, weight in used], np.float64)
    return Blend(tuple(prefix for prefix, _ in used), tuple((normalised / normalised.sum()).tolist()))


def _parse_weight(word: str, prefix: str, address: str) -> float:
    try:
        weight = float(word)
    except ValueError:
        raise DataError(f"{address} = {word!r} is no number, as the weight of {prefix!r} must be") from None
    if not (weight >= 0 and math.isfinite(weight)):
        raise DataError(f"{address} = weight {word} of {prefix!r} is not 0 or more; give a positive weight")
    return weight


class BlendedDataset:
    """`size` samples drawn from several datasets by weight, in the order of Megatron's greedy blend.

    The order is worked out as far as samples are asked for, so a long run starts at once.
    """

    def __init__(self, datasets: Sequence[SampleDataset], weights: Sequence[float], size: int) -> None:
        self.datasets = tuple(datasets)
        self.weights = tuple(weights)
        self.size = size
        self._taken = [0] * len(self.datasets)
        self._blocks: list[tuple[NDArray[np.int16], NDArray[np.int64]]] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, sample: int) -> NDArray[np.int64]:
        dataset, inner = self.source(sample)
        return self.datasets[dataset][inner % len(self.datasets[dataset])]

    def source(self, sample: int) -> tuple[int, int]:
        """`(dataset, sample of that dataset)` behind a sample."""
        if not 0 <= sample < self.size:
            raise IndexError(f"sample = {sample} is outside 0..{self.size - 1}")
        while len(self._blocks) * BLOCK <= sample:
            self._blocks.append(self._next_block(len(self._blocks) * BLOCK))
        datasets, samples = self._blocks[sample // BLOCK]
        return int(datasets[sample % BLOCK]), int(samples[sample % BLOCK])

    def _next_block(self, start: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        weights, taken = self.weights, self._taken
        others = range(1, len(weights))
        datasets, samples = np.empty(BLOCK, np.int16), np.empty(BLOCK, np.int64)
        for row in range(BLOCK):
            position = float(max(start + row, 1))
            behind, largest = 0, weights[0] * position - taken[0]
            for dataset in others:
                error = weights[dataset] * position - taken[dataset]
                if error > largest:
                    behind, largest = dataset, error
            datasets[row], samples[row] = behind, taken[behind]
            taken[behind] += 1
        return datasets, samples
