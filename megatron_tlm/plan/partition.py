"""Consecutive units cut into stages so that the slowest stage is as fast as any cut can make it.

        units    e  m  M  m  M  m  M  m  M  h        costs fall with depth (taper), the head is heavy
        stages   [---0---][---1------][---2-------]

First the smallest possible slowest stage, by bisection: whether a bound can be met is seen by filling each stage up to
it. Then, among the cuts that meet it, the one with the smallest sum of squares, so that the other stages are even too:
an exact dynamic programme over (stages used, units taken), O(n k log n) for n units and k stages: half a second at the
most for a thousand units and 64 stages.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
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
    borders = _most_even(sums, num_stages, slowest_stage(sums, num_stages))
    return tuple(range(first, last) for first, last in pairwise(borders))


def slowest_stage(sums: Sequence[float], num_stages: int) -> float:
    """The smallest bound that `num_stages` stages can meet; `sums` are the costs summed from the left, from 0 on."""
    total = sums[-1] - sums[0]
    if isinstance(total, int):
        low, high = -(-total // num_stages), total
        while low < high:
            met = _largest_filled(sums, num_stages, (low + high) // 2)
            low, high = ((low + high) // 2 + 1, high) if met is None else (low, int(met))
        return high
    below, above = 0.0, float(total)
    # Until no number lies between: each bound that is met is lowered to what it was met with.
    while below < (middle := below + (above - below) / 2) < above:
        met = _largest_filled(sums, num_stages, middle)
        below, above = (middle, above) if met is None else (below, met)
    return above


def _largest_filled(sums: Sequence[float], num_stages: int, bound: float) -> float | None:
    """The largest stage when each is filled up to `bound`, None where the stages do not suffice."""
    first, last, largest = 0, len(sums) - 1, 0.0
    for _ in range(num_stages):
        stop = _reach(sums, first, bound)
        if stop == first:
            return None
        largest = max(largest, sums[stop] - sums[first])
        first = stop
        if first == last:
            return largest
    return None


def _reach(sums: Sequence[float], first: int, bound: float) -> int:
    """The last border at which a stage that begins at `first` keeps within `bound`."""
    stop = bisect_right(sums, sums[first] + bound, lo=first) - 1
    # A sum plus a bound may round past a border whose difference does not, or the reverse.
    while stop + 1 < len(sums) and sums[stop + 1] - sums[first] <= bound:
        stop += 1
    while stop > first and sums[stop] - sums[first] > bound:
        stop -= 1
    return stop


def _earliest(sums: Sequence[float], stop: int, bound: float, low: int, high: int) -> int:
    """The first border in low..high from which a stage up to `stop` keeps within `bound`."""
    return bisect_left(sums, True, low, high, key=lambda head: sums[stop] - head <= bound)


def _most_even(sums: Sequence[float], num_stages: int, bound: float) -> list[int]:
    """Borders of the cut within `bound` whose loads have the smallest sum of squares; of equals, the earlier borders.

    The further right a stage ends, the further right it best begins (squares of sums obey the quadrangle inequality),
    so the best beginning of the middle one halves the search for the others.
    """
    windows = _windows(sums, num_stages, bound)
    best: dict[int, float] = {0: 0}
    choices: list[dict[int, int]] = []
    for before, window in pairwise(windows):
        totals: dict[int, float] = {}
        choice: dict[int, int] = {}
        waiting = [(window.start, window.stop, before.start, before.stop)]
        while waiting:
            start, stop, low, high = waiting.pop()
            if start >= stop:
                continue
            end = (start + stop) // 2
            nearest = _earliest(sums, end, bound, low, high)
            reached, total, first = sums[end], inf, low
            for candidate in range(max(low, nearest), min(high, end)):
                load = reached - sums[candidate]
                value = best[candidate] + load * load
                if value < total:
                    total, first = value, candidate
            totals[end], choice[end] = total, first
            waiting += [(start, end, low, first + 1), (end + 1, stop, first, high)]
        best = totals
        choices.append(choice)
    borders = [len(sums) - 1]
    for choice in reversed(choices):
        borders.append(choice[borders[-1]])
    return borders[::-1]


def _windows(sums: Sequence[float], num_stages: int, bound: float) -> list[range]:
    """Where each border can lie so that all stages before it and all after it can keep within `bound`."""
    last = len(sums) - 1
    latest, earliest = [0], [last]
    for _ in range(num_stages):
        latest.append(_reach(sums, latest[-1], bound))
        earliest.append(_earliest(sums, earliest[-1], bound, 0, earliest[-1]))
    starts = [max(stage, earliest[num_stages - stage]) for stage in range(num_stages + 1)]
    stops = [min(latest[stage], last - (num_stages - stage)) for stage in range(num_stages + 1)]
    return [range(start, stop + 1) for start, stop in zip([0, *starts[1:]], [0, *stops[1:]], strict=True)]
