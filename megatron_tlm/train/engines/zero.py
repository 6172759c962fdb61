"""One stage under DeepSpeed's plain engine, ZeRO 0-3.

With ZeRO 0 DeepSpeed neither reports a gradient norm nor knows which parameters are replicated over tensor ranks, so
there the gradients are clipped by us between the last backward and the step.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import deepspeed
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup, Mesh, all_reduce_sum
from megatron_tlm.config.schema import Config
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
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


class Units:
    """The groups that DeepSpeed asks for under the names of Megatron's `mpu`; model parallel means tensor parallel.

    DeepSpeed takes None for the whole world, so an axis of one rank needs a real group of one.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        alone = [deepspeed.comm.new_group([rank]) for rank in range(mesh.grid.size)][mesh.rank]
        self._data = mesh.data.group or alone
        self._tensor = mesh.tensor.group or alone

    def get_data_parallel_group(self) -> Any:
        return self._data

    def get_data_parallel_world_size(self) -> int:
        return self._mesh.data.size

    def get_data_parallel_rank(self) -> int:
        return self._mesh.data.rank

    def get_model_parallel_group(self) -> Any:
        return self._tensor

    def get_model_parallel_world_size(self) -> int:
        return self._mesh.tensor.size

    def get_model_parallel_rank(self) -> int:
        return self._mesh.tensor.rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return self._mesh.tensor.size

    def get_tensor_model_parallel_rank(self) -> int:
        return self._mesh.tensor.rank


class ZeroEngine:
    """The whole depth of the model on every data rank."""

    def __init__(self, config: Config, plan: Plan, mesh: Mesh, stage: Stage, rules: PackRules) -> None:
        self.stage, self.parameters = stage, stage.global_parameters()
        self._config, self._plan, self._mesh, self._rules = config, plan, mesh, rules
        self._step_loss = self._norm = 0.0
        groups = level_groups(self.parameters, config, plan, mesh)
        optimizer = build_optimizer(groups, config.optimizer, config.architecture.cms_update)
        settings = deepspeed_config(config, micro_batches=plan.micro_batches, data=mesh.data.size)
        with hushed():
            deepspeed.init_distributed(verbose=False)
            self.deepspeed, *_ = deepspeed.initialize(
                model=stage, optimizer=optimizer, config=settings, mpu=Units(mesh)
            )
        self._gate = StepGate(optimizer, lambda: (self._step_loss, self._grad_norm()))

    def train_step(self, micro_batches: MicroBatches, learning_rate: float, judge: Judge = accept) -> StepResult:
        engine, count = self.deepspeed, self._plan.micro_batches
        engine.train()
        set_learning_rate(engine.optimizer, learning_rate)
        total = torch.zeros((), dtype=torch.float64, device=engine.device)
        self._gate.close(judge)
        for index, loss in enumerate(self._losses(micro_batches, count)):
            total += loss.detach()
            engine.backward(loss)
            if index == count - 1:
                self._step_loss = self._mean(float(total) / count, self._mesh.data)
                if self._config.parallel.zero_stage == 0:
                    clip = self._config.optimizer.clip_grad
                    self._norm = clip_gradients(self.parameters.values(), self._mesh, clip)
            engine.step()
        applied = self._gate.open()
        told = self._gate.judged or (self._step_loss, self._grad_norm())
        if not applied:
            return StepResult(*told, applied=False)
        return StepResult(*told, read_levels(engine.basic_optimizer, self._config, self._plan, self._mesh))

    def _grad_norm(self) -> float:
        """Of the gradient as it was before clipping."""
        if self._config.parallel.zero_stage == 0:
            return self._norm
        # Under ZeRO 1 to 3 the optimizer knows first, the engine only after the step.
        return float(self.deepspeed.optimizer._global_grad_norm)

    @torch.no_grad()
    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        self.deepspeed.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.deepspeed.device)
        for loss in self._losses(micro_batches, count):
            total += loss
        return self._mean(float(total) / count, self._mesh.data)

    def _losses(self, micro_batches: MicroBatches, count: int) -> Iterator[Tensor]:
        """Of a step's micro-batches, each when it is asked for; read all at once where their labels must be counted."""
        batches: Iterable[NDArray[np.int64]] = islice(micro_batches, count)
        weight = None
        if self._rules.mask_loss:
            batches = list(batches)
            weight = self._rules.token_weight(batches, self._mesh.data)
        for batch in batches:
            yield self._loss(batch, weight)

    def _loss(self, batch: NDArray[np.int64], weight: float | None) -> Tensor:
        """Logits live in here alone: whoever waits for the loss, above all its backward, has the memory back."""
        tokens_BS, labels_BS = self._rules.split(batch, self.deepspeed.device)
        packing = self._rules.packing(batch, self.deepspeed.device)
        logits_BSv = self.deepspeed(tokens_BS) if packing is None else self.deepspeed(tokens_BS, packing=packing)
        return mean_loss(logits_BSv, labels_BS, self._mesh.tensor, self._plan.shape.vocab_size, weight)

    @staticmethod
    def _mean(value: float, data: AxisGroup) -> float:
        return all_reduce_sum([value], data)[0] / data.size
