"""Several corpora as one: at every sample the corpus that is furthest behind its weight gives the next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.data.indexed_dataset import pair_paths
from megatron_tlm.errors import DataError

SURPLUS = 0.005  # Megatron's: each corpus is built for half a percent more than its share
BLOCK = 1 << 14
ROWS = 1 << 10  # of a block whose due shares are held at once
KEPT_BLOCKS = 4
STATE_EVERY = 256  # blocks between two states that are kept for good

Block = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The dataset, and the sample of that dataset, behind each sample of a block."""


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
    """`prefix`, or `weight prefix weight prefix ...`; weights are positive, and normalised."""
    if len(words) == 1 and " " in words[0].strip():
        words = words[0].split()
    if not words or not all(map(str.strip, words)):
        raise DataError(
            f"{address} = {tuple(words)} names no corpus; give a prefix of a .bin/.idx pair (or --mock-data)"
        )
    if len(words) == 1:
        return Blend((words[0],), None)
    shown = " ".join(words)
    if len(words) % 2:
        raise DataError(
            f"{address} = {shown!r} has {len(words)} words where weights and prefixes come in pairs; "
            "give a weight before every prefix"
        )
    weights = [_parse_weight(word, prefix, address) for word, prefix in zip(words[::2], words[1::2], strict=True)]
    prefixes = tuple(words[1::2])
    paths = [pair_paths(prefix)[0].resolve() for prefix in prefixes]  # one pair can be spelt in several ways
    for prefix, path in zip(prefixes, paths, strict=True):
        if paths.count(path) > 1:
            raise DataError(f"{address} = {prefix!r} is given {paths.count(path)} times; add its weights up")
    normalised = np.array(weights, np.float64)
    total = sum(weights)
    if not math.isfinite(total) or min(weights) / total == 0:
        raise DataError(
            f"{address} = weights from {min(weights):g} to {max(weights):g} are too far apart or too large to be "
            "shares of 1; give numbers such as 0.7 and 0.3"
        )
    return Blend(prefixes, tuple((normalised / normalised.sum()).tolist()))


def _parse_weight(word: str, prefix: str, address: str) -> float:
    try:
        weight = float(word)
    except ValueError:
        raise DataError(f"{address} = {word!r} is no number, as the weight of {prefix!r} must be") from None
    if not (weight > 0 and math.isfinite(weight)):
        raise DataError(f"{address} = weight {word} of {prefix!r} is not above 0; give a positive one, or leave it out")
    return weight


@dataclass(frozen=True)
class BlendState:
    """A place in the order of a blend, a multiple of BLOCK, and how many samples each corpus gave before it."""

    position: int
    taken: tuple[int, ...]

    def fits(self, weights: Sequence[float]) -> bool:
        """Whether it can be one of this blend: nobody is further from its share than greed lets it get."""
        if self.position % BLOCK or len(self.taken) != len(weights) or sum(self.taken) != self.position:
            return False
        shares = zip(weights, self.taken, strict=True)
        return all(abs(weight * self.position - count) <= len(weights) for weight, count in shares)

    def to_text(self) -> str:
        return " ".join(map(str, (self.position, *self.taken)))

    @classmethod
    def from_text(cls, text: str) -> "BlendState | None":
        """None for what is no such text."""
        words = text.split()
        if not words or not all(word.isdecimal() for word in words):
            return None
        position, *taken = map(int, words)
        return cls(position, tuple(taken))


class BlendedDataset:
    """`size` samples drawn from several datasets by weight, in the order of Megatron's greedy blend.

    The order is worked out as far as samples are asked for, a step or two of microseconds each, so a long run starts at
    once. It can be taken up at a `BlendState` that an earlier run was at.
    """

    def __init__(
        self,
        datasets: Sequence[SampleDataset],
        weights: Sequence[float],
        size: int,
        *,
        state: BlendState | None = None,
    ) -> None:
        self.datasets = tuple(datasets)
        self.weights = tuple(weights)
        self.size = size
        self._states = {0: BlendState(0, (0,) * len(self.weights))}  # where blocks start
        if state is not None and state.fits(self.weights):
            self._states[state.position // BLOCK] = state
        self._recent: dict[int, Block] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, sample: int) -> NDArray[np.int64]:
        dataset, inner = self.source(sample)
        return self.datasets[dataset][inner % len(self.datasets[dataset])]

    def source(self, sample: int) -> tuple[int, int]:
        """`(dataset, sample of that dataset)` behind a sample."""
        if not 0 <= sample < self.size:
            raise IndexError(f"sample = {sample} is outside 0..{self.size - 1}")
        datasets, samples = self._block(sample // BLOCK)
        return int(datasets[sample % BLOCK]), int(samples[sample % BLOCK])

    def taken(self, sample: int) -> tuple[int, ...]:
        """How many of the samples before this one come from each dataset; exact, whatever was read."""
        start = self.state(sample).taken
        if sample % BLOCK == 0:
            return start
        datasets, _ = self._block(sample // BLOCK)
        inside = np.bincount(datasets[: sample % BLOCK], minlength=len(self.weights)).tolist()
        return tuple(a + b for a, b in zip(start, inside, strict=True))

    def state(self, sample: int) -> BlendState:
        """Where the block of a sample starts, for a later run that goes on from this sample."""
        wanted = sample // BLOCK
        known = max(block for block in self._states if block <= wanted)
        for block in range(known, wanted):
            self._block(block)
        return self._states[wanted]

    def _block(self, block: int) -> Block:
        if block not in self._recent:
            self._recent[block] = self._make_block(block)
            while len(self._recent) > KEPT_BLOCKS:
                del self._recent[next(iter(self._recent))]
        return self._recent[block]

    def _make_block(self, block: int) -> Block:
        start = block * BLOCK
        before = np.array(self.state(start).taken, np.int64)
        taken, weights = before.astype(np.float64), np.array(self.weights, np.float64)
        behind = np.empty_like(taken)
        chosen: list[int] = []
        for row in range(start, start + BLOCK, ROWS):
            positions = np.arange(row, min(row + ROWS, start + BLOCK), dtype=np.float64)
            for due in np.outer(np.maximum(positions, 1.0), weights):
                np.subtract(due, taken, behind)
                first = behind.argmax()  # the first of the largest, as in Megatron's loop
                chosen.append(int(first))
                taken[first] += 1
        datasets = np.array(chosen, np.int32)
        counts = np.bincount(datasets, minlength=len(weights))
        by_dataset = np.argsort(datasets, kind="stable")
        inner = np.empty(BLOCK, np.int64)
        inner[by_dataset] = np.arange(BLOCK) + np.repeat(before - (np.cumsum(counts) - counts), counts)
        self._states[block + 1] = BlendState(start + BLOCK, tuple((before + counts).tolist()))
        if (old := block + 1 - KEPT_BLOCKS) % STATE_EVERY:
            self._states.pop(old, None)
        return datasets, inner
