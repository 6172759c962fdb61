"""Consecutive units cut into stages so that the slowest stage is as fast as any cut can make it.

        units    e  m  M  m  M  m  M  m  M  h        costs fall with depth (taper), the head is heavy
        stages   [---0---][---1------][---2-------]

Two exact dynamic programmes over (units taken, stages used): the first finds the smallest possible slowest stage, the
second, among the cuts that reach it, the one with the smallest sum of squares, so that the other stages are even too.
O(n^2 k) for n units and k stages.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf

from megatron_tlm.errors import PlanError


def partition(costs: Sequence[float], num_stages: int) -> tuple[range, ...]:
    """Ranges of unit indices, one per stage in order, none empty; the largest sum of costs is the smallest possible.

    PlanError for fewer units than stages, for no stage at all, or for a cost that is negative or not finite.
    """
    if not 1 <= num_stages <= len(costs):
        raise PlanError(
            f"num_stages = {num_stages} cannot be cut from {len(costs)} units; use 1 to {len(costs)} stages"
        )
    for index, cost in enumerate(costs):
        if not 0 <= cost < inf:
            raise PlanError(f"costs[{index}] = {cost} is not a finite cost; give 0 or more")
    sums = (0, *accumulate(costs))

    def load(first: int, last: int) -> float:
        return sums[last] - sums[first]

    slowest, _ = _best_cut(len(costs), num_stages, load, max)
    _, borders = _best_cut(
        len(costs),
        num_stages,
        lambda first, last: load(first, last) ** 2 if load(first, last) <= slowest else inf,
        lambda so_far, stage: so_far + stage,
    )
    return tuple(range(first, last) for first, last in pairwise(borders))


def _best_cut(
    num_units: int,
    num_stages: int,
    stage_cost: Callable[[int, int], float],
    combine: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """The smallest combined cost of `num_stages` non-empty stages, and their borders from 0 to `num_units`."""
    best: list[float] = [0.0, *([inf] * num_units)]
    choices: list[list[int]] = []
    for stage in range(1, num_stages + 1):
        following = [inf] * (num_units + 1)
        cut = [stage - 1] * (num_units + 1)
        for last in range(stage, num_units - (num_stages - stage) + 1):
            for first in range(stage - 1, last):
                value = combine(best[first], stage_cost(first, last))
                if value < following[last]:
                    following[last], cut[last] = value, first
        best = following
        choices.append(cut)
    borders = [num_units]
    for cut in reversed(choices):
        borders.append(cut[borders[-1]])
    return best[num_units], borders[::-1]
