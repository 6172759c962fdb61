"""What the training loop asks of an engine, and the one place that chooses between the two there are.

    zero.py       one stage, ZeRO 0-3: DeepSpeed's plain engine
    pipeline.py   two stages or more, ZeRO 0-1: DeepSpeed's pipeline engine with our stages

Shapes: B microbatch, S sequence, v this rank's share of the padded vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup, Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from megatron_tlm.model.units import block_options
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.quiet import prepare_deepspeed

MicroBatches = Iterator[NDArray[np.int64]]


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: mean loss of the global batch, norm of its whole gradient before clipping."""

    loss: float
    grad_norm: float


class Engine(Protocol):
    """A model being trained on this rank. `micro_batches` are int64 [B, S + 1] of this rank's data rank."""

    parameters: dict[str, nn.Parameter]
    deepspeed: Any

    def train_step(self, micro_batches: MicroBatches, learning_rate: float) -> StepResult:
        """Takes one step's micro-batches and steps the optimizer; the result is equal on all ranks."""

    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        """The mean loss of `count` micro-batches per data rank, without dropout; equal on all ranks."""


def split_batch(batch: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
    """[B, S + 1] -> tokens [B, S] and the labels [B, S] that follow them."""
    whole = torch.from_numpy(batch).to(device, non_blocking=True)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def mean_loss(logits_BSv: Tensor, labels_BS: Tensor, tensor: AxisGroup, vocab_size: int) -> Tensor:
    """Mean cross-entropy in nats per token, a scalar that is equal on all tensor ranks."""
    return vocab_parallel_cross_entropy(logits_BSv, labels_BS, tensor, vocab_size).mean()


def training_device(mesh: Mesh) -> torch.device:
    """This process's GPU where there is one, chosen with the process group; else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def build_engine(config: Config, plan: Plan, mesh: Mesh) -> Engine:
    """This rank's stage with its initial weights, inside the engine that the number of stages asks for.

    The process group must stand: DeepSpeed builds groups of its own in it.
    """
    prepare_deepspeed()
    # Only now: DeepSpeed reads its environment while it is imported, and takes seconds.
    from megatron_tlm.train.pipeline import PipelineEngine
    from megatron_tlm.train.zero import ZeroEngine

    stage = Stage(
        plan,
        mesh.coordinate.pipe,
        tensor=mesh.tensor,
        dtype=torch.bfloat16 if config.training.bf16 else torch.float32,
        device=training_device(mesh),
        options=block_options(config),
    )
    init_stage(stage, plan, seed=config.training.seed, std=config.model.init_method_std)
    engine = ZeroEngine if plan.grid.pipe == 1 else PipelineEngine
    return engine(config, plan, mesh, stage)
