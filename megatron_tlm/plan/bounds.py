"""Step times that a stage's own position and load already rule out, whatever the other cuts.

The step time is the longest path through the schedule (`plan.lattice`). Some of those paths see, besides one stage s,
only all stages before it and all stages after it, so their length depends on where s begins and ends alone:

    0 .. s-1   F ↘                                                    ↗ B
    s              F ↘       ↗ B F B F B F ... F B F ↘       ↗ B
    s+1 .. S-1         F ↘↗ B       stays on s        F ↘↗ B          with or without each of the two excursions

The longest of the four bounds the step time from below. Where the stages are within a factor 1.5 of each other, and
backward twice forward, it has always been found equal to it (with messages within a percent), so that a cut reaching
the smallest such bound is proven to be the best.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.plan.pieces import Pieces, Pipeline, Spans

UNREACHED = np.int64(2**62)  # stands for "no such cut"


class Path(NamedTuple):
    """How often a path runs each thing: stage s itself, the stages after it, messages; whether it ends at stage 0."""

    forward: int
    backward: int
    later: int
    messages: int
    returns: bool


@lru_cache(maxsize=4096)
def paths(stage: int, num_stages: int, micro_batches: int) -> tuple[Path, ...]:
    """The paths of one stage that exist for so many micro-batches."""
    found = []
    for out_first in (False, True):
        for out_last in (False, True):
            for returns in (True, False):
                path = _walk(stage, num_stages, micro_batches, out_first, out_last, returns)
                if path is not None:
                    found.append(path)
    return tuple(dict.fromkeys(found))


def _walk(
    stage: int, num_stages: int, micro_batches: int, out_first: bool, out_last: bool, returns: bool
) -> Path | None:
    last = num_stages - 1
    out = [*range(stage + 1, num_stages), *range(last, stage, -1)]
    # Steps 0..stage lead from stage 0 to F(s, 0); B(s, m - 1) is at step 2 m + 2 S - s - 3.
    length = 2 * (micro_batches + num_stages - 1 - stage)
    stays = length - len(out) * (out_first + out_last)
    if stage == last and (out_first or out_last):
        return None
    if stays < 2 * (out_first + out_last) or stays < 2:
        return None
    begin, end = ([stage, *out] if out_first else []), ([*out, stage] if out_last else [])
    middle = [stage] * (length - len(begin) - len(end))
    back = list(range(stage - 1, -1, -1)) if returns else []
    position = np.array([*range(stage), *begin, *middle, *end, *back])
    return _count(position, stage, num_stages, micro_batches, returns)


def _count(position: NDArray[np.int64], stage: int, num_stages: int, micro_batches: int, returns: bool) -> Path | None:
    step = np.arange(len(position))
    ahead = (step - position) % 2 == 0
    number = np.where(ahead, (step - position) // 2, (step + position + 1) // 2 - num_stages)
    valid = (number >= 0) & (number < micro_batches)
    later = np.where(ahead, position, position + 1)  # the later stage of the pair that exchanges
    pair = (later > 0) & (later < num_stages)
    messages = sum(
        (pair & (message >= 0) & (message < micro_batches)).astype(np.int64)
        for message in ((step - later) // 2, (step + later) // 2 - num_stages)
    )
    moved = np.flatnonzero(np.diff(position)) + 1
    elsewhere = position != stage
    if not np.asarray(messages)[moved].all() or not valid[elsewhere].all():
        return None
    here = ~elsewhere & valid
    after = num_stages - 1 - stage
    return Path(
        forward=int((here & ahead).sum()),
        backward=int((here & ~ahead).sum()),
        later=int((position > stage).sum()) // (2 * after) if after else 0,
        messages=int(np.sum(messages)) + (not returns and stage > 0),
        returns=returns,
    )


class Tables:
    """For each stage: a lower bound of the step time and its peak memory, by first piece and number of pieces.

    `time[s][i, d]` and `memory[s][i, d]` are for the stage s that owns the pieces i .. i + d; UNREACHED beyond the end.
    `time` leaves the update out: to the largest `time` of a cut its largest `update[i, d]` has to be added.
    """

    def __init__(self, pieces: Pieces, pipeline: Pipeline, width: int, *, slowest_stage: bool) -> None:
        self.count = len(pieces)
        first = np.arange(self.count)[:, None]
        self.stop = np.minimum(first + 1 + np.arange(width)[None, :], self.count)
        beyond = first + 1 + np.arange(width)[None, :] > self.count
        self.time: list[NDArray[np.int64]] = []
        self.memory: list[NDArray[np.int64]] = []
        self.update = np.zeros_like(self.stop) if slowest_stage else _between(pieces.update, self.stop)
        loads = _Loads(pieces, self.stop)
        spans = Spans(
            _between(pieces.static, self.stop),
            _between(pieces.kept, self.stop),
            _running_maximum(pieces.at_work, width) - pieces.kept[: self.count, None],
            _between(pieces.parameters, self.stop),
        )
        for stage in range(pipeline.num_stages):
            time = loads.forward + loads.backward if slowest_stage else _stage_bound(loads, pipeline, stage)
            bytes_ = pieces.peaks(stage, spans, pipeline)
            if pipeline.memory_limit is not None:
                time = np.where(bytes_ > pipeline.memory_limit, UNREACHED, time)
            self.time.append(np.where(beyond, UNREACHED, time))
            self.memory.append(np.where(beyond, UNREACHED, bytes_))

    def smallest_maximum(self, entries: list[NDArray[np.int64]]) -> tuple[int, list[int]]:
        """The cut whose largest entry is the smallest possible: that entry, UNREACHED if none, and the borders."""
        rest = np.full(self.count + 1, UNREACHED)
        rest[self.count] = 0
        choices = []
        for table in reversed(entries):
            worst = np.maximum(table, rest[self.stop])
            choice = worst.argmin(axis=1)
            choices.append(choice)
            rest = np.append(np.take_along_axis(worst, choice[:, None], axis=1)[:, 0], UNREACHED)
        borders = [0]
        for choice in reversed(choices):
            if borders[-1] < self.count:
                borders.append(int(self.stop[borders[-1], choice[borders[-1]]]))
        return int(rest[0]), borders


def _between(sums: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    difference: NDArray[np.int64] = sums[stop] - sums[: len(stop), None]
    return difference


def _running_maximum(values: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    padded = np.concatenate((values, np.zeros(width, dtype=np.int64)))
    rows = np.lib.stride_tricks.sliding_window_view(padded, width)[: len(values)]
    maximum: NDArray[np.int64] = np.maximum.accumulate(rows, axis=1)
    return maximum


class _Loads:
    """What every stage could own, [first piece, number of pieces], and what lies before and after it."""

    def __init__(self, pieces: Pieces, stop: NDArray[np.int64]) -> None:
        self.forward, self.backward = _between(pieces.forward, stop), _between(pieces.backward, stop)
        self.reduce = _between(pieces.reduce, stop)
        self.reduces = bool(pieces.reduce[-1])
        self.first_reduce = int(pieces.reduce[1])
        self.earlier_forward, self.earlier_backward = (
            sums[: len(stop), None] for sums in (pieces.forward, pieces.backward)
        )
        self.later = pieces.forward[-1] - pieces.forward[stop] + pieces.backward[-1] - pieces.backward[stop]


def _stage_bound(loads: _Loads, pipeline: Pipeline, stage: int) -> NDArray[np.int64]:
    last = pipeline.num_stages - 1
    tied = pipeline.tied if last else 0
    bound = np.zeros_like(loads.forward)
    for path in paths(stage, pipeline.num_stages, pipeline.micro_batches):
        # Ending early, at this stage's own reduction, is longer only where there is one.
        if not (path.returns or loads.reduces):
            continue
        length = path.forward * loads.forward + path.backward * loads.backward
        if path.later:
            length += path.later * loads.later
        length += loads.earlier_forward + path.messages * pipeline.message
        if not path.returns:
            length += loads.reduce
        elif stage == 0 or (tied and stage == last):
            length += loads.earlier_backward + tied + np.maximum(loads.reduce, loads.first_reduce)
        else:
            length += loads.earlier_backward + (tied + loads.first_reduce)
        np.maximum(bound, length, out=bound)
    return bound
