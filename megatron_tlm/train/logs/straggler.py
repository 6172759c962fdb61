"""Ranks that are slower than others at the same work, and where they stand.

In a synchronous run every rank's step takes the same time: the fast ones wait for the slow one. What differs is a
rank's own work, so its forward passes are timed, as Megatron's straggler detector does, less what they spent in
collectives of the tensor axis (on a GPU, where these run on the device, the ranks of a tensor group count as one).
Ranks are held against the median of their stage: those do the same work.

    forward-compute-time-min, -median, -max     seconds a step in forward passes, over all ranks
    data-wait-time-max                          seconds a step that the rank with the slowest data waited for it
    straggler-ratio, straggler-rank             the slowest rank over the median of its stage, and which it is
"""

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

import torch
from torch import nn

from megatron_tlm.comm.groups import Mesh, all_reduce_sum, gather_object
from megatron_tlm.train.logs.events import Tell
from megatron_tlm.train.logs.stage_times import Clock, StreamClock, WallClock
from megatron_tlm.train.logs.watch import Moment

MOST_STEPS = 16  # of an interval that are looked at, the last ones
TWICE = 2  # intervals in a row that a rank must be slow in before it is told of: once is a hiccup


class ForwardTimes:
    """Seconds of a module's forward passes in training, step by step, less what `meter` counts meanwhile."""

    def __init__(self, module: nn.Module, mesh: Mesh, clock: Clock) -> None:
        self._clock, self._meter = clock, mesh.tensor.waiting
        self._begun: Any = None
        self._waited = 0.0
        self._passes: list[tuple[Any, Any, float]] = []
        self._steps: deque[list[tuple[Any, Any, float]]] = deque(maxlen=MOST_STEPS)
        self._hooks = (module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end))

    def end_step(self) -> None:
        self._steps.append(self._passes)
        self._passes = []

    def take(self) -> float:
        """The mean of the steps since it was last asked for."""
        seconds = [sum(self._clock.seconds(a, b) - waited for a, b, waited in passes) for passes in self._steps]
        self._steps.clear()
        return sum(seconds) / max(len(seconds), 1)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module: nn.Module, given: Any) -> None:
        if module.training:
            self._begun, self._waited = self._clock.mark(), self._meter.seconds

    def _end(self, module: nn.Module, given: Any, result: Any) -> None:
        if module.training and self._begun is not None:
            self._passes.append((self._begun, self._clock.mark(), self._meter.seconds - self._waited))
            self._begun = None


@dataclass(frozen=True)
class Slow:
    """A rank whose work takes `ratio` times the median of its stage."""

    rank: int
    ratio: float


class StragglerWatch:
    """Times this rank at every step; at the log interval all ranks compare, and rank 0 names the slow ones."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        device: torch.device,
        *,
        interval: int,
        threshold: float,
        most_named: int,
        say: Callable[[str], None],
        event: Tell,
    ) -> None:
        self._mesh, self._interval, self._threshold = mesh, interval, threshold
        self._most_named, self._say, self._event = most_named, say, event
        self._times = ForwardTimes(module, mesh, StreamClock() if device.type == "cuda" else WallClock())
        self._hosts = gather_object(socket.gethostname())
        self._wait, self._steps = 0.0, 0
        self._slow_for: dict[int, int] = {}  # rank -> intervals in a row

    def after_step(self, moment: Moment) -> Mapping[str, float]:
        self._times.end_step()
        self._wait, self._steps = self._wait + moment.wait_seconds, self._steps + 1
        if moment.step % self._interval:
            return {}
        rank, size = self._mesh.rank, self._mesh.grid.size
        table = [0.0] * (2 * size)
        table[rank], table[size + rank] = self._times.take(), self._wait / self._steps
        self._wait, self._steps = 0.0, 0
        table = all_reduce_sum(table)
        forward, wait = table[:size], table[size:]
        ranked = slowest(forward, self._stages())
        self._tell(moment.step, [slow for slow in ranked if slow.ratio > self._threshold])
        return {
            "forward-compute-time-min": min(forward),
            "forward-compute-time-median": median(forward),
            "forward-compute-time-max": max(forward),
            "data-wait-time-max": max(wait),
            **({"straggler-ratio": ranked[0].ratio, "straggler-rank": float(ranked[0].rank)} if ranked else {}),
        }

    def close(self) -> None:
        self._times.close()

    def _stages(self) -> list[int]:
        return [self._mesh.grid.coordinate(rank).pipe for rank in range(self._mesh.grid.size)]

    def _tell(self, step: int, slow: Sequence[Slow]) -> None:
        self._slow_for = {item.rank: self._slow_for.get(item.rank, 0) + 1 for item in slow}
        lasting = [item for item in slow if self._slow_for[item.rank] >= TWICE][: self._most_named]
        if not lasting:
            return
        told = [f"rank {item.rank} on {self._hosts[item.rank]} {item.ratio:.2f} x" for item in lasting]
        self._say(f"slower than the median of their stage in forward passes: {', '.join(told)}")
        begun = [item for item in lasting if self._slow_for[item.rank] == TWICE]
        if begun:
            ranks = [{"rank": i.rank, "host": self._hosts[i.rank], "ratio": round(i.ratio, 3)} for i in begun]
            self._event("straggler", step, ranks=ranks)


def slowest(seconds: Sequence[float], stages: Sequence[int]) -> list[Slow]:
    """Ranks by how far they lie above their stage's median, the slowest first; a stage of one rank has no median."""
    found = []
    for stage in dict.fromkeys(stages):
        ranks = [rank for rank, own in enumerate(stages) if own == stage]
        middle = median_low([seconds[rank] for rank in ranks])  # of two ranks the fast one
        if len(ranks) > 1 and middle > 0:
            found += [Slow(rank, seconds[rank] / middle) for rank in ranks]
    return sorted(found, key=lambda slow: (-slow.ratio, slow.rank))
