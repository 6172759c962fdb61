"""Layer-wise novelty of a model on a text, and how it goes with depth (arXiv:2606.23670, layer-wise novelty)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

import torch
from torch import Tensor

from megatron_tlm.evaluation.model import Model
from megatron_tlm.model.novelty import LayerNovelty, NoveltyProbe


@dataclass(frozen=True)
class Novelty:
    """rho_block and rho_mlp of every layer, over `num_tokens` tokens."""

    layers: tuple[LayerNovelty, ...]
    num_tokens: int

    @property
    def pearson_block(self) -> float | None:
        return pearson([layer.rho_block for layer in self.layers])

    @property
    def pearson_mlp(self) -> float | None:
        return pearson([layer.rho_mlp for layer in self.layers])


def pearson(by_depth: Sequence[float]) -> float | None:
    """Pearson's r of a value with the layer's number; None where it has none: fewer than two layers, or all equal."""
    try:
        return correlation(range(len(by_depth)), by_depth)
    except StatisticsError:
        return None


def measure_novelty(model: Model, batches: Iterable[Tensor]) -> Novelty:
    """Of token ids [B, S], each data rank's own batches. Collective: every rank of a data rank gives the same."""
    num_tokens, was_training = 0, model.stage.training
    model.stage.eval()
    with torch.inference_mode(), NoveltyProbe(model.stage, model.mesh) as probe:
        for tokens_BS in batches:
            model.logits(tokens_BS)
            num_tokens += tokens_BS.numel()
    model.stage.train(was_training)
    return Novelty(probe.result(), num_tokens)
