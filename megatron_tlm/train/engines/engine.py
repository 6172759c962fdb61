"""What the training loop asks of an engine, and what both engines make of a batch.

Shapes: B microbatch, S sequence, v this rank's share of the padded vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.stage import Stage
from megatron_tlm.train.engines.gate import Judge, accept
from megatron_tlm.train.engines.multi_frequency import LevelReport
from megatron_tlm.train.engines.packing import IGNORED

MicroBatches = Iterator[NDArray[np.int64]]


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: mean loss of the global batch, norm of its whole gradient before clipping.

    `levels` tells what the levels of a continuum memory did, where the model has one. Where the update was not
    `applied` the model and its optimizer are as they were before; a norm that is no number may then read inf.
    """

    loss: float
    grad_norm: float
    levels: tuple[LevelReport, ...] = ()
    applied: bool = True


class Engine(Protocol):
    """A model being trained on this rank. `micro_batches` are int64 [B, S + 1] of this rank's data rank."""

    stage: Stage
    parameters: dict[str, nn.Parameter]
    deepspeed: Any

    def train_step(self, micro_batches: MicroBatches, learning_rate: float, judge: Judge = accept) -> StepResult:
        """Takes one step's micro-batches and steps the optimizer; the result is equal on all ranks.

        Without the update where loss or norm are no numbers, or `judge` says so.
        """

    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        """The mean loss of `count` micro-batches per data rank, without dropout; equal on all ranks."""


def mean_loss(
    logits_BSv: Tensor, labels_BS: Tensor, tensor: AxisGroup, vocab_size: int, token_weight: float | None = None
) -> Tensor:
    """Mean cross-entropy in nats per token, a scalar that is equal on all tensor ranks.

    With a `token_weight`, the sum over the labels that are not IGNORED times that.
    """
    if token_weight is None:
        return vocab_parallel_cross_entropy(logits_BSv, labels_BS, tensor, vocab_size).mean()
    counts_BS = labels_BS != IGNORED
    loss_BS = vocab_parallel_cross_entropy(logits_BSv, labels_BS.clamp(min=0), tensor, vocab_size)
    return (loss_BS * counts_BS).sum() * token_weight
