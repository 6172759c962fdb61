"""Several stages under DeepSpeed's pipeline engine (1F1B), ZeRO 0-1.

DeepSpeed is given as many layers as there are stages, each a whole `Stage`: its own partitioner then has nothing left
to decide, and our bounds hold without touching its internals. Between stages goes one float tensor [B, s, D].

A tied output weight is a copy on the last stage: drawn from the same seed, given the sum of both ends' gradients every
step, counted in the norm on the first stage alone, and stored from there.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from types import MethodType
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.schedule import ForwardPass
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from numpy.typing import NDArray
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup, Mesh, all_reduce_sum
from megatron_tlm.config.schema import Config
from megatron_tlm.layers.packing import Packing
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.grid import Coordinate
from megatron_tlm.train.engines.deepspeed_config import deepspeed_config
from megatron_tlm.train.engines.engine import MicroBatches, StepResult, mean_loss
from megatron_tlm.train.engines.gate import Judge, StepGate, accept
from megatron_tlm.train.engines.optimizer import (
    build_optimizer,
    clip_gradients,
    level_groups,
    read_levels,
    set_learning_rate,
)
from megatron_tlm.train.engines.packing import PackRules
from megatron_tlm.train.engines.quiet import hushed


class StagePipeline(PipelineModule):  # type: ignore[misc]
    """One layer per stage, of which this rank holds its own; the others' places are empty."""

    def __init__(self, stage: Stage, plan: Plan, mesh: Mesh, layer: nn.Module, loss: "_StepLoss") -> None:
        grid = plan.grid
        layers = [layer if index == mesh.coordinate.pipe else nn.Identity() for index in range(grid.pipe)]
        super().__init__(
            layers,
            topology=PipeModelDataParallelTopology(num_pp=grid.pipe, num_mp=grid.tensor, num_dp=grid.data),
            loss_fn=loss,
            partition_method="uniform",
        )
        self._tied = self._tie(stage, plan, mesh) if plan.shape.tied_embeddings else []

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """What DeepSpeed sums over the two ends before every step."""
        return self._tied

    @staticmethod
    def _tie(stage: Stage, plan: Plan, mesh: Mesh) -> list[tuple[nn.Parameter, Any]]:
        grid, place, tied = plan.grid, mesh.coordinate, []
        for data in range(grid.data):
            for tensor in range(grid.tensor):
                ends = [grid.rank(Coordinate(pipe, data, tensor)) for pipe in (0, grid.pipe - 1)]
                group = deepspeed.comm.new_group(ends)  # collective: all ranks make every group
                if mesh.rank in ends:
                    tied.append((stage.global_parameters()["embedding.weight"], group))
        if tied and place.pipe > 0:
            tied[0][0].ds_pipe_replicated = True  # type: ignore[attr-defined]
        return tied


class _FedStage(nn.Module):
    """A stage that takes what it has to know of each micro-batch's documents from aside: the pipe carries h alone."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.packings: Iterator[Packing | None] = iter(())

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.stage(x, packing=next(self.packings))
        return h


class _StepLoss:
    """The loss of a micro-batch; `token_weight` is set for every step."""

    def __init__(self, tensor: AxisGroup, vocab_size: int) -> None:
        self._tensor, self._vocab_size = tensor, vocab_size
        self.token_weight: float | None = None

    def __call__(self, logits_BSv: Tensor, labels_BS: Tensor) -> Tensor:
        return mean_loss(logits_BSv, labels_BS, self._tensor, self._vocab_size, self.token_weight)


class PipelineEngine:
    """This rank's stage of the model."""

    def __init__(self, config: Config, plan: Plan, mesh: Mesh, stage: Stage, rules: PackRules) -> None:
        self.stage, self.parameters = stage, stage.global_parameters()
        self._config, self._plan, self._mesh, self._rules = config, plan, mesh, rules
        self._loss = _StepLoss(mesh.tensor, plan.shape.vocab_size)
        self._fed = _FedStage(stage) if rules.changes_model else None
        self._norm = 0.0
        groups = level_groups(self.parameters, config, plan, mesh)
        optimizer = build_optimizer(groups, config.optimizer, config.architecture.cms_update)
        settings = deepspeed_config(config, micro_batches=plan.micro_batches, data=mesh.data.size)
        with hushed():
            deepspeed.init_distributed(verbose=False)
            self.deepspeed, *_ = deepspeed.initialize(
                model=StagePipeline(stage, plan, mesh, self._fed or stage, self._loss),
                optimizer=optimizer,
                config=settings,
            )
        if config.parallel.zero_stage == 0:
            self._clip_before_step()
        if self.deepspeed.is_last_stage():
            self._release_logits()
        self._gate = StepGate(optimizer, lambda: (self._mean_loss(), self._grad_norm()))

    def train_step(self, micro_batches: MicroBatches, learning_rate: float, judge: Judge = accept) -> StepResult:
        set_learning_rate(self.deepspeed.optimizer, learning_rate)
        self._gate.close(judge)
        mean = float(self.deepspeed.train_batch(self._batches(micro_batches, self._plan.micro_batches)))
        applied = self._gate.open()
        told = self._gate.judged or (mean, self._grad_norm())
        if not applied:
            return StepResult(*told, applied=False)
        return StepResult(*told, read_levels(self.deepspeed.basic_optimizer, self._config, self._plan, self._mesh))

    def _grad_norm(self) -> float:
        """Of the gradient as it was before clipping."""
        if self._config.parallel.zero_stage == 0:
            return self._norm
        return float(self.deepspeed.optimizer._global_grad_norm)

    def _mean_loss(self) -> float:
        """Of the step under way, whose micro-batches are all through; DeepSpeed tells it only once it has stepped."""
        place, grid = self._mesh.coordinate, self._plan.grid
        speaks = place.pipe == grid.pipe - 1 and place.tensor == 0
        total = float(self.deepspeed.total_loss) if speaks else 0.0
        return all_reduce_sum([total])[0] / (self._plan.micro_batches * grid.data)

    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        batches = self._batches(micro_batches, count)
        return float(self.deepspeed.eval_batch(batches, num_micro_batches=count))

    def _batches(self, micro_batches: MicroBatches, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """DeepSpeed takes the first of a pair on the first stage, the second on the last, nothing between.

        Where ends of documents matter every stage reads the step's tokens by itself.
        """
        batches: Iterable[NDArray[np.int64]] = islice(micro_batches, count)
        if self._rules.mask_loss or self._fed is not None:
            batches = list(batches)
            self._loss.token_weight = self._rules.token_weight(batches, self._mesh.data)
        if self._fed is not None:
            # Forward passes come in the order of the micro-batches, on every stage.
            self._fed.packings = map(self._packing, batches)
        return (self._rules.split(batch, torch.device("cpu")) for batch in batches)

    def _packing(self, batch: NDArray[np.int64]) -> Packing | None:
        return self._rules.packing(batch, self.deepspeed.device)

    def _clip_before_step(self) -> None:
        """Without ZeRO, DeepSpeed's norm leaves out what later stages replicate: put ours in front of its step."""
        engine = self.deepspeed
        step = engine._take_model_step

        def clip_and_step(_: Any, lr_kwargs: Any) -> None:
            self._norm = clip_gradients(self.parameters.values(), self._mesh, self._config.optimizer.clip_grad)
            step(lr_kwargs)

        engine._take_model_step = MethodType(clip_and_step, engine)

    def _release_logits(self) -> None:
        """DeepSpeed would keep the last stage's outputs of two micro-batches; of no use once their loss is known."""
        table = self.deepspeed._INSTRUCTION_MAP
        forward = table[ForwardPass]

        def forward_and_release(engine: Any, buffer_id: int) -> None:
            forward(engine, buffer_id)
            engine.pipe_buffers["outputs"][buffer_id] = None

        self.deepspeed._INSTRUCTION_MAP = {**table, ForwardPass: forward_and_release}
