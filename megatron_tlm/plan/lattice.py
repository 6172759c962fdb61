"""The step time of many cuts at once: what `plan.simulate` computes, without its events.

The schedule is a brick wall. In step t the neighbours (s - 1, s) with s = t mod 2 exchange, so both start together,
at the later of their ends; then s runs a forward and s - 1 a backward. Hence the step time is the longest path with
the moves F(s) -> B(s) or F(s+1), and B(s) -> F(s) or B(s-1).

    t      0     1     2     3     4          | stages that exchange before the step
    s=0    F0    |.    F1    |.    F2
    s=1    .     |F0   |.    |F1   |B0
    s=2    .     .     |F0   B0    |F1
"""

from collections.abc import Iterator
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


class _Meeting(NamedTuple):
    """Pairs of neighbours that exchange before a step, every second stage; `messages` are [pairs, 1]."""

    earlier: slice
    later: slice
    messages: Ticks


class _Step(NamedTuple):
    """What happens in a step, and to which stages: all others are idle and keep their time."""

    meetings: tuple[_Meeting, ...]
    forward: slice
    backward: slice


@lru_cache(maxsize=64)
def _steps(num_stages: int, micro_batches: int) -> tuple[_Step, ...]:
    stage = np.arange(num_stages)
    steps = []
    for step in range(num_steps(num_stages, micro_batches)):
        ahead = (step - stage) % 2 == 0
        number = np.where(ahead, (step - stage) // 2, (step + stage + 1) // 2 - num_stages)
        valid = (number >= 0) & (number < micro_batches)
        later = stage[step % 2 or 2 :: 2]
        activation, gradient = (step - later) // 2, (step + later) // 2 - num_stages
        messages = np.zeros(len(later), dtype=np.int64)
        for message in (activation, gradient):
            messages += (message >= 0) & (message < micro_batches)
        steps.append(
            _Step(
                tuple(_meetings(later, messages)),
                _every_second(stage[valid & ahead]),
                _every_second(stage[valid & ~ahead]),
            )
        )
    return tuple(steps)


def _meetings(later: Ticks, messages: Ticks) -> Iterator[_Meeting]:
    """One for each run of neighbouring pairs that have something to exchange."""
    busy = np.flatnonzero(messages)
    for run in np.split(busy, np.flatnonzero(np.diff(busy) > 1) + 1):
        if len(run):
            yield _Meeting(_every_second(later[run] - 1), _every_second(later[run]), messages[run][:, None])


def _every_second(stages: Ticks) -> slice:
    """The slice of these stages, which are two apart."""
    return slice(int(stages[0]), int(stages[-1]) + 1, 2) if len(stages) else slice(0, 0)


def pipeline_ends(forward: Ticks, backward: Ticks, micro_batches: int, message: int) -> Ticks:
    """When each stage of each cut has ended its last backward and sent its gradient, [B, S]."""
    count, num_stages = forward.shape
    # Stages first: what a step touches then lies together.
    ahead, back = np.ascontiguousarray(forward.T), np.ascontiguousarray(backward.T)
    end = np.zeros((num_stages, count), dtype=np.int64)
    for meetings, forwards, backwards in _steps(num_stages, micro_batches):
        for meeting in meetings:
            together = np.maximum(end[meeting.earlier], end[meeting.later])
            if message:
                together += message * meeting.messages
            end[meeting.earlier] = end[meeting.later] = together
        end[forwards] += ahead[forwards]
        end[backwards] += back[backwards]
    return end.T


def step_times(stages: StageTicks, micro_batches: int, *, message: int = 0, tied: int = 0) -> Ticks:
    """The step time of each cut, [B]: equal to `simulate(...).step_time`."""
    end = pipeline_ends(stages.forward, stages.backward, micro_batches, message)
    if tied and end.shape[1] > 1:
        end[:, [0, -1]] = end[:, [0, -1]].max(axis=1, keepdims=True) + tied
    reduced: Ticks = (end + stages.reduce).max(axis=1)
    result: Ticks = reduced + stages.update.max(axis=1)
    return result
