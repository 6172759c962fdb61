"""Times of a model's units on the device at hand: what `plan --profile` stores and the cut then uses.

Each kind of unit runs as it does in training, forward and backward apart, at the workload's shape and precision. Of
the MLPs a handful of widths is measured; the others lie on the line between their neighbours. Rounds go through all
units in turn, so that a busy moment of the machine hits all alike, and the median of the rounds counts. Ranks of a
world measure at the same time, as they train, and the mean of theirs counts.

Shapes: B microbatch, S sequence, D model width.
"""

import time
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup, all_reduce_sum, barrier
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.units import block_options, build_unit
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.hardware import Profile, UnitSeconds
from megatron_tlm.plan.units import Unit

MEASURED_WIDTHS = 5


class Seconds(NamedTuple):
    """One round of one unit."""

    forward: float
    backward: float


class UnitRun:
    """One unit, its gradients allocated, with what it runs on."""

    def __init__(self, unit: Unit, plan: Plan, config: Config, device: torch.device) -> None:
        dtype = torch.bfloat16 if config.training.bf16 else torch.float32
        self.unit, self.device, self.vocab_size = unit, device, plan.shape.vocab_size
        options = block_options(config)
        self.module: nn.Module = build_unit(unit, plan, AxisGroup.single(), dtype, device, options).train()
        for parameter in self.module.parameters():
            nn.init.normal_(parameter, std=0.02)
            parameter.grad = torch.zeros_like(parameter)
        sizes = (plan.workload.micro_batch_size, plan.seq_length)
        self.tokens_BS = torch.randint(self.vocab_size, sizes, device=device)
        self.h_BSD = torch.randn(*sizes, plan.shape.hidden_size, dtype=dtype, device=device, requires_grad=True)
        self.gradient_BSD = torch.randn_like(self.h_BSD)

    def run(self) -> Seconds:
        """Forward, and backward of what came out."""
        begin = self.now()
        out = self.module(self.tokens_BS if self.unit.kind == "embedding" else self.h_BSD)
        if self.unit.kind == "head":
            out = vocab_parallel_cross_entropy(out, self.tokens_BS, AxisGroup.single(), self.vocab_size).mean()
        middle = self.now()
        self._backward(out)
        return Seconds(middle - begin, self.now() - middle)

    def _backward(self, out: Tensor) -> None:
        out.backward(None if out.dim() == 0 else self.gradient_BSD)  # type: ignore[no-untyped-call]
        self.h_BSD.grad = None

    def now(self) -> float:
        """The clock, once the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def measure_update(run: UnitRun, rounds: int) -> float:
    """Seconds per parameter of an AdamW step."""
    parameters = list(run.module.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)
    optimizer.step()
    taken = []
    for _ in range(rounds):
        begin = run.now()
        optimizer.step()
        taken.append(run.now() - begin)
    return median(taken) / sum(parameter.numel() for parameter in parameters)


def measured_units(plan: Plan) -> list[Unit]:
    """One unit of each kind, and of the MLPs the narrowest, the widest and some between."""
    first: dict[tuple[str, int | None], Unit] = {}
    for unit in plan.units:
        first.setdefault((unit.kind, unit.width), unit)
    mlps = sorted((unit for unit in first.values() if unit.kind == "mlp"), key=lambda unit: unit.width or 0)
    steps = min(MEASURED_WIDTHS, len(mlps))
    chosen = [mlps[round(index * (len(mlps) - 1) / max(steps - 1, 1))] for index in range(steps)]
    return [*(unit for unit in first.values() if unit.kind != "mlp"), *chosen]


def measure_units(config: Config, plan: Plan, device: torch.device, *, rounds: int = 7) -> Profile:
    """The profile of a plan's units on a device, without messages; collective where there is a world.

    PlanError for several tensor ranks: each process measures by itself.
    """
    if plan.grid.tensor > 1:
        raise PlanError(
            f"tensor_model_parallel_size = {plan.grid.tensor} cannot be measured by 1 process; "
            "measure with 1, or describe the device with --hardware"
        )
    runs = [UnitRun(unit, plan, config, device) for unit in measured_units(plan)]
    barrier()
    for run in runs:
        run.run()
    times: list[list[Seconds]] = [[] for _ in runs]
    for _ in range(rounds):
        for taken, run in zip(times, runs, strict=True):
            taken.append(run.run())
    own = [median(seconds) for taken in times for seconds in zip(*taken, strict=True)]
    update = measure_update(max(runs, key=lambda run: run.unit.num_parameters), rounds)
    ranks, update, *mean = all_reduce_sum([1.0, update, *own])
    forwards, backwards = mean[0::2], mean[1::2]
    return Profile(
        device=torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        seq_length=plan.seq_length,
        micro_batch_size=plan.workload.micro_batch_size,
        tensor_degree=1,
        bf16=config.training.bf16,
        recompute=config.parallel.recompute_granularity,
        hidden_size=plan.shape.hidden_size,
        units=tuple(
            UnitSeconds(run.unit.kind, run.unit.width, forward / ranks, backward / ranks)
            for run, forward, backward in zip(runs, forwards, backwards, strict=True)
        ),
        update_seconds=update / ranks,
        notes=f"median of {rounds} rounds, mean of {int(ranks)} rank{'s' if ranks > 1 else ''} at work at once",
    )
