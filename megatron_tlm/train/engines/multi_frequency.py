"""AdamW at several frequencies: the optimizer of Hope's continuum memory (arXiv:2512.24695, equations 70-71).

A level's parameters move only every C-th step; in between, their gradients are gathered in a float32 sum.

    mean   at the end of a window: one AdamW step with the mean gradient of the window; n counts those steps
    sum    every step: AdamW's moments, and  sum <- sum + lr (direction + decay * theta)  with theta as it stands;
           at the end of the window  theta <- theta - sum

With C = 1 both are AdamW. Gradients come unscaled and clipped, from DeepSpeed or from ourselves.

All state is beside the tensor that is stepped: DeepSpeed calls `step` once per group, per part of a group, or for all,
by its ZeRO stage, so nothing may be counted per call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from megatron_tlm.comm.groups import Mesh, all_reduce_sum

Update = Literal["mean", "sum"]
WINDOW = "window_sum"
WINDOW_STEPS = "window_steps"


@dataclass(frozen=True)
class LevelReport:
    """One level (from 0, the fastest) after a step: its clipped gradient's norm, its update over its weights, how many.

    `update_ratio` is None after a step that did not move it.
    """

    level: int
    period: int
    grad_norm: float
    update_ratio: float | None
    updates: int


@dataclass
class _Meter:
    """Sums of squares over the tensors of one level, since they were last read; `updates` of any of its tensors."""

    gradient: Tensor | float = 0.0
    update: Tensor | float = 0.0
    weight: Tensor | float = 0.0
    moved: bool = False
    updates: int = 0


@dataclass
class LevelMeters:
    """What `MultiFrequencyAdamW` measures while it steps, by level; read once per step, by all ranks together."""

    meters: dict[int, _Meter] = field(default_factory=dict)

    def read(self, periods: Mapping[int, int], mesh: Mesh, *, whole_on_data_ranks: bool) -> tuple[LevelReport, ...]:
        """The reports of all levels, summed over all ranks; collective."""
        values = [
            float(value)
            for level in periods
            for meter in [self.meters.get(level, _Meter())]
            for value in (meter.gradient, meter.update, meter.weight)
        ]
        copies = mesh.data.size if whole_on_data_ranks else 1
        sums = [value / copies for value in all_reduce_sum(values)]
        reports = []
        for index, (level, period) in enumerate(periods.items()):
            gradient, update, weight = sums[3 * index : 3 * index + 3]
            meter = self.meters.get(level, _Meter())
            ratio = (update / weight) ** 0.5 if meter.moved and weight > 0 else None
            reports.append(LevelReport(level - 1, period, gradient**0.5, ratio, meter.updates))
        self.meters.clear()
        return tuple(reports)


class MultiFrequencyAdamW(torch.optim.AdamW):
    """Groups carry `level` (0: no level), `period`, and `counted`: whether this rank measures them."""

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float, update: Update
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.window_update = update
        self.meters = LevelMeters()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every tensor that has a gradient; those whose window stays open keep their values."""
        stepped: list[tuple[dict[str, Any], Tensor, bool]] = []
        for group in self.param_groups:
            if group["level"] == 0:
                continue
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                self._measure_gradient(group, tensor)
                moves = self._gather(group, tensor) if group["period"] > 1 else True
                stepped.append((group, tensor, moves))
        loss = super().step(closure)
        for group, tensor, moves in stepped:
            self._count_updates(group, tensor)
            if moves:
                self._measure_update(group, tensor)
            if moves and group["period"] > 1:
                self.state[tensor][WINDOW].zero_()
        return loss  # type: ignore[no-any-return]

    def _gather(self, group: dict[str, Any], tensor: Tensor) -> bool:
        """Take a gradient into the window; leaves torch's AdamW a mean gradient at its end, and none before.

        True when the tensor moves in this step.
        """
        state = self.state[tensor]
        if not state:
            state.update(fresh_state(tensor, 0, group["period"], self.window_update))
        state[WINDOW_STEPS] += 1
        closes = int(state[WINDOW_STEPS]) % int(group["period"]) == 0
        if self.window_update == "mean":
            state[WINDOW].add_(tensor.grad)
            tensor.grad = state[WINDOW] / group["period"] if closes else None
            return closes
        state["step"] += 1
        gradient, tensor.grad = tensor.grad, None
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state[WINDOW].add_(self._direction(group, tensor), alpha=group["lr"])
        state[WINDOW].add_(tensor, alpha=group["lr"] * group["weight_decay"])
        if closes:
            tensor.sub_(state[WINDOW])
        return closes

    def _direction(self, group: dict[str, Any], tensor: Tensor) -> Tensor:
        """AdamW's, from the moments as they stand and the tensor's own count; decay left out."""
        state, (beta1, beta2) = self.state[tensor], group["betas"]
        count = int(state["step"])
        spread = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        direction: Tensor = state["exp_avg"] / spread.mul_(1 - beta1**count)
        return direction

    def _measure_gradient(self, group: dict[str, Any], tensor: Tensor) -> None:
        if group["counted"] and tensor.grad is not None:
            meter = self.meters.meters.setdefault(group["level"], _Meter())
            meter.gradient = meter.gradient + tensor.grad.square().sum(dtype=torch.float64)

    def _count_updates(self, group: dict[str, Any], tensor: Tensor) -> None:
        meter = self.meters.meters.setdefault(group["level"], _Meter())
        state = self.state[tensor]
        meter.updates = int(state.get(WINDOW_STEPS, state["step"])) // int(group["period"])

    def _measure_update(self, group: dict[str, Any], tensor: Tensor) -> None:
        """What the step has moved, recomputed from the moments: a copy of all weights would be a copy too many."""
        meter = self.meters.meters.setdefault(group["level"], _Meter())
        state = self.state[tensor]
        meter.moved = True
        if not group["counted"]:
            return
        if self.window_update == "sum" and group["period"] > 1:
            moved = state[WINDOW]
        else:
            adam, decay = self._direction(group, tensor).mul_(group["lr"]), group["lr"] * group["weight_decay"]
            moved = (tensor + adam).div_(1 - decay).sub_(tensor)
        meter.update = meter.update + moved.square().sum(dtype=torch.float64)
        meter.weight = meter.weight + tensor.square().sum(dtype=torch.float64)


def fresh_state(tensor: Tensor, steps: int, period: int, update: Update) -> dict[str, Tensor]:
    """A tensor's zero state after `steps` steps of the run, for a resume to fill in.

    `step` is the tensor's own count, by which the moments are corrected: of windows for "mean", of steps for "sum".
    """
    count = steps // period if update == "mean" else steps
    state = {
        # A fused step reads its count on the device.
        "step": torch.tensor(float(count), dtype=torch.float32, device=tensor.device),
        "exp_avg": torch.zeros_like(tensor),
        "exp_avg_sq": torch.zeros_like(tensor),
    }
    if period > 1:
        state |= {WINDOW: torch.zeros_like(tensor), WINDOW_STEPS: torch.tensor(float(steps))}
    return state


def level_periods(periods: Sequence[int]) -> dict[int, int]:
    """Level -> steps between its updates; levels count from 1 in the parameter table, 0 is everything else."""
    return dict(enumerate(periods, start=1))


def level_news(periods: Sequence[int], train_steps: int) -> list[str]:
    """What a person wants to know of the levels before the first step; a last window left open is dropped."""
    if len(periods) == 1:
        return []
    lines = [f"levels: {len(periods)} MLPs per layer, updated every {', '.join(map(str, periods))} steps"]
    for level, period in enumerate(periods):
        rest = train_steps % period
        if rest:
            lines.append(
                f"level {level}: the gradients of the last {rest} of {train_steps} steps fill no window of "
                f"{period} and are dropped"
            )
    return lines
