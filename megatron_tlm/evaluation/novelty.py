"""Layer-wise novelty of a model on a text, and how it goes with depth (arXiv:2606.23670, layer-wise novelty)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.model import Model
from megatron_tlm.model.novelty import LayerNovelty, NoveltyProbe, pearson


@dataclass(frozen=True)
class Novelty:
    """rho_block and rho_mlp of every layer, means over `num_tokens` tokens."""

    layers: tuple[LayerNovelty, ...]
    num_tokens: int

    @property
    def pearson_block(self) -> float | None:
        return pearson([layer.rho_block for layer in self.layers])

    @property
    def pearson_mlp(self) -> float | None:
        return pearson([layer.rho_mlp for layer in self.layers])


def windows(stream: NDArray[np.integer], length: int, batch: int, num_tokens: int) -> list[Tensor]:
    """The first `num_tokens` of a stream as int64 [B, S], S = `length`: whole windows, one at least.

    A stream shorter than that is one window by itself. DataError for an empty one.
    """
    if len(stream) == 0:
        raise DataError("tokens to measure on = 0 is below 1; give a text that is not empty")
    if len(stream) < length:
        return [torch.from_numpy(stream.astype(np.int64))[None]]
    count = min(max(num_tokens // length, 1), len(stream) // length)
    rows = torch.from_numpy(stream[: count * length].astype(np.int64).reshape(count, length))
    return [rows[start : start + batch] for start in range(0, count, batch)]


def measure_novelty(model: Model, batches: Sequence[Tensor]) -> Novelty:
    """Of token ids [B, S], shared out over data ranks. Collective: every rank gives the same batches."""
    data, was_training = model.mesh.data, model.stage.training
    model.stage.eval()
    with torch.inference_mode(), NoveltyProbe(model.stage, model.mesh) as probe:
        for tokens_BS in islice(batches, data.rank, None, data.size):
            model.logits(tokens_BS)
    model.stage.train(was_training)
    return Novelty(probe.result(), sum(tokens_BS.numel() for tokens_BS in batches))


def joined(texts: Iterable[Sequence[int]], eod_id: int, num_tokens: int) -> NDArray[np.int64]:
    """Documents' ids one behind the other, an end-of-document token after each, up to `num_tokens`."""

    def ids() -> Iterator[int]:
        for text in texts:
            yield from text
            yield eod_id

    return np.fromiter(islice(ids(), num_tokens), np.int64)
