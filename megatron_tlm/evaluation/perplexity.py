"""Token perplexity: exp of the mean cross-entropy over all predicted tokens (natural logarithm)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_tlm.errors import DataError
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.stage import Stage


@dataclass(frozen=True)
class Perplexity:
    """Mean loss in nats per token over `num_tokens` predictions."""

    loss: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)


def evaluate_perplexity(stage: Stage, windows: Iterable[NDArray[np.int64]]) -> Perplexity:
    """Windows [B, S + 1] of ids, of any B and S each: position i predicts i + 1. DataError where there is none.

    The stage is the whole model on one process; its training mode is left as it was found.
    """
    device = next(stage.parameters()).device
    total, num_tokens, was_training = 0.0, 0, stage.training
    stage.eval()
    with torch.inference_mode():
        for window in windows:
            tokens_BS = torch.from_numpy(np.ascontiguousarray(window)).to(device)
            labels_BS = tokens_BS[:, 1:]
            losses_BS = vocab_parallel_cross_entropy(
                stage(tokens_BS[:, :-1]), labels_BS, stage.tensor, stage.plan.shape.vocab_size
            )
            total += float(losses_BS.sum(dtype=torch.float64))
            num_tokens += labels_BS.numel()
    stage.train(was_training)
    if num_tokens == 0:
        raise DataError("evaluation windows = 0 tokens is below 1; give data of at least one sequence")
    return Perplexity(total / num_tokens, num_tokens)
