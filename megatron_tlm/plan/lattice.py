"""The step time of many cuts at once: what `plan.simulate` computes, without its events.

The schedule is a brick wall. In step t the neighbours (s - 1, s) with s = t mod 2 exchange, so both start together,
at the later of their ends; then s runs a forward and s - 1 a backward. Hence the step time is the longest path with
the moves F(s) -> B(s) or F(s+1), and B(s) -> F(s) or B(s-1).

    t      0     1     2     3     4          | stages that exchange before the step
    s=0    F0    |.    F1    |.    F2
    s=1    .     |F0   |.    |F1   |B0
    s=2    .     .     |F0   B0    |F1
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.plan.schedule import num_steps

Ticks = NDArray[np.int64]


class StageTicks(NamedTuple):
    """Ticks of B cuts into S stages, each [B, S]: see `plan.simulate.StageTime`."""

    forward: Ticks
    backward: Ticks
    reduce: Ticks
    update: Ticks


class _Step(NamedTuple):
    first: int  # the first stage that runs a forward; then every second one
    messages: Ticks  # [pairs] messages exchanged by each pair of neighbours before the step
    forward: Ticks  # [S] 1 where a stage runs a forward
    backward: Ticks  # [S] 1 where it runs a backward


@lru_cache(maxsize=64)
def _steps(num_stages: int, micro_batches: int) -> tuple[_Step, ...]:
    stage = np.arange(num_stages)
    steps = []
    for step in range(num_steps(num_stages, micro_batches)):
        ahead = (step - stage) % 2 == 0
        number = np.where(ahead, (step - stage) // 2, (step + stage + 1) // 2 - num_stages)
        valid = (number >= 0) & (number < micro_batches)
        first = step % 2 or 2
        later = stage[first::2]
        activation, gradient = (step - later) // 2, (step + later) // 2 - num_stages
        messages = sum(
            ((message >= 0) & (message < micro_batches)).astype(np.int64) for message in (activation, gradient)
        )
        steps.append(
            _Step(first, np.asarray(messages), (valid & ahead).astype(np.int64), (valid & ~ahead).astype(np.int64))
        )
    return tuple(steps)


def pipeline_ends(forward: Ticks, backward: Ticks, micro_batches: int, message: int) -> Ticks:
    """When each stage of each cut has ended its last backward and sent its gradient, [B, S]."""
    count, num_stages = forward.shape
    end = np.zeros((count, num_stages), dtype=np.int64)
    for first, messages, runs_forward, runs_backward in _steps(num_stages, micro_batches):
        if len(messages):
            earlier, later = end[:, first - 1 : num_stages - 1 : 2], end[:, first::2]
            together = np.maximum(earlier, later) + message * messages
            if messages.all():
                earlier[...], later[...] = together, together
            else:
                np.copyto(earlier, together, where=messages > 0)
                np.copyto(later, together, where=messages > 0)
        end += forward * runs_forward + backward * runs_backward
    return end


def step_times(stages: StageTicks, micro_batches: int, *, message: int = 0, tied: int = 0) -> Ticks:
    """The step time of each cut, [B]: equal to `simulate(...).step_time`."""
    end = pipeline_ends(stages.forward, stages.backward, micro_batches, message)
    if tied and end.shape[1] > 1:
        end[:, [0, -1]] = end[:, [0, -1]].max(axis=1, keepdims=True) + tied
    reduced: Ticks = (end + stages.reduce).max(axis=1)
    result: Ticks = reduced + stages.update.max(axis=1)
    return result
