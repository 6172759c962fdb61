"""The cut with the smallest simulated step time that fits into memory: exact, and honest where it could not finish.

A stage's own place and load bound the step time from below (`plan.bounds`). All cuts whose stages are within a limit
are enumerated, left to right, without dead ends; each is simulated. The limit begins at the smallest one that any cut
meets: a cut that reaches it is proven the best, which is the rule where stages come out nearly even. Otherwise the
limit rises to the best step time found, and the enumeration below it is the proof.

Of cuts with equal step times the one with the lower peak memory wins, then the one whose borders are earlier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.bounds import UNREACHED, Tables
from megatron_tlm.plan.partition import partition, slowest_stage
from megatron_tlm.plan.pieces import Piece, Pieces, Pipeline
from megatron_tlm.plan.schedule import num_steps

Objective = Literal["step-time", "slowest-stage"]
Borders = tuple[int, ...]

EFFORT = 40_000_000  # stage steps to simulate at the most, about a second
LARGEST_TABLE = 30_000_000  # entries of all tables together, half a gigabyte


@dataclass(frozen=True)
class Cut:
    """`borders` of the stages, 0 first; `step_time` in ticks and `peak_bytes` are what the simulation gives.

    No cut that fits into memory is faster than `bound`. `proven`: none is better in any respect, ties included.
    """

    borders: Borders
    step_time: int
    peak_bytes: int
    bound: int
    proven: bool

    @property
    def gap(self) -> float:
        """By which share of its step time a better cut could at the most be faster."""
        return 1 - self.bound / self.step_time if self.step_time else 0.0


def best_cut(
    pieces: Sequence[Piece], pipeline: Pipeline, objective: Objective = "step-time", effort: int = EFFORT
) -> Cut:
    """The best cut into `pipeline.num_stages` non-empty stages.

    `slowest-stage` minimises the largest forward + backward instead of the simulated step time.
    PlanError where no cut fits into `pipeline.memory_limit`, naming the smallest peak there is, or for a number of
    stages or micro-batches that cannot be.
    """
    table = Pieces(pieces)
    table.check(pipeline)
    lightest = lightest_cut(table, pipeline)
    limit = pipeline.memory_limit
    if limit is not None and lightest.peak_bytes > limit:
        raise PlanError(
            f"memory limit = {limit} bytes is below {lightest.peak_bytes}, the peak of the lightest cut into "
            f"{pipeline.num_stages} stages; use more stages or less memory per micro-batch"
        )
    return _Search(table, pipeline, objective, effort, lightest).run()


def fits(table: Pieces, pipeline: Pipeline) -> bool:
    """Whether any cut keeps within the memory limit."""
    return pipeline.memory_limit is None or _filled(table, pipeline, pipeline.memory_limit) is not None


def lightest_cut(table: Pieces, pipeline: Pipeline, precision: float = 0.0) -> Cut:
    """The cut with the smallest peak memory, whatever its step time and the memory limit.

    By bisection: whether a peak can be kept is seen by filling each stage up to it. `precision` is the share of the
    peak at which to stop.
    """
    count, stages = len(table), pipeline.num_stages
    borders = [*range(stages), count]
    low, high = 0, table.peak_bytes(borders, pipeline)
    while low < high - int(precision * high):
        filled = _filled(table, pipeline, (low + high) // 2)
        if filled is None:
            low = (low + high) // 2 + 1
        else:
            borders, high = filled, table.peak_bytes(filled, pipeline)
    step_time = int(table.step_times(np.array([borders]), pipeline)[0])
    return Cut(tuple(borders), step_time, high, 0, False)


def _filled(table: Pieces, pipeline: Pipeline, peak: int) -> list[int] | None:
    """Borders of the cut whose stages each take all they can hold, None where pieces are left over."""
    borders = [0]
    for stage in range(pipeline.num_stages):
        first, latest = borders[-1], len(table) - (pipeline.num_stages - stage - 1)
        used = table.peaks(stage, table.spans_from(first, latest), pipeline)
        borders.append(first + int(np.searchsorted(used, peak, side="right")))
        if borders[-1] == first:
            return None
    return borders if borders[-1] == len(table) else None


def _width(table: Pieces, largest: int) -> int:
    """The most pieces a stage can have whose forward + backward is at most `largest`."""
    sums = table.forward + table.backward
    reach = np.searchsorted(sums, sums + largest, side="right") - 1
    return max(1, int((reach - np.arange(len(sums))).max()))


class _Exhausted(Exception):
    """The effort is spent."""


class _Search:
    def __init__(self, table: Pieces, pipeline: Pipeline, objective: Objective, effort: int, start: Cut) -> None:
        self.table, self.pipeline, self.effort = table, pipeline, effort
        self.by_stage = objective == "slowest-stage"
        self.best_time, self.best_peak, self.best = int(UNREACHED), start.peak_bytes, start.borders
        # The most even cut is near the best, if it fits; the closer the start, the smaller the tables.
        loads = np.diff(table.forward + table.backward).tolist()
        even = (0, *(part.stop for part in partition(loads, pipeline.num_stages)))
        limit = pipeline.memory_limit
        fits = limit is None or table.peak_bytes(even, pipeline) <= limit
        self._try([start.borders, even] if fits else [start.borders])
        longest = self.best_time if self.by_stage else self.best_time // pipeline.micro_batches
        width = min(_width(table, longest), len(table) - pipeline.num_stages + 1)
        self.complete = pipeline.num_stages * len(table) * width <= LARGEST_TABLE
        if not self.complete:
            width = max(1, LARGEST_TABLE // (pipeline.num_stages * len(table)))
        self.tables = Tables(table, pipeline, width, slowest_stage=self.by_stage)
        # No cut's slowest update is faster than this, so every stage may count it as its own.
        updates = [int(value) for value in table.update]
        self.update = np.maximum(
            self.tables.update, 0 if self.by_stage else slowest_stage(updates, pipeline.num_stages)
        )

    def run(self) -> Cut:
        entries = [time + self.update for time in self.tables.time]
        floor, borders = self.tables.smallest_maximum(entries)
        bound, proven = min(floor, self.best_time), False
        if floor < UNREACHED:
            self._try([tuple(borders)])
        try:
            bound = self._fastest(bound)
            self._lightest()
            self._earliest()
            proven = self.complete
        except _Exhausted:
            pass
        if not self.complete:
            bound = min(bound, floor)
        time = self.best_time
        if self.by_stage:
            time = int(self.table.step_times(np.array([self.best]), self.pipeline)[0])
            bound = time if proven else 0
        return Cut(self.best, time, self.best_peak, bound, proven)

    def _fastest(self, floor: int) -> int:
        """Lower the best step time until it is the smallest; that time."""
        # A coarse ladder first: good cuts are mostly found low, and finding them early shortens the rest.
        for share in (0, 1 / 64, 1 / 16, 1 / 4, 1):
            while self.best_time > floor:
                limit = min(floor + int((self.best_time - floor) * share), self.best_time - 1)
                if not self._improve(limit, int(UNREACHED)):
                    break
        return self.best_time

    def _improve(self, time_limit: int, memory_limit: int) -> bool:
        """Whether a cut within the limits is faster than the best, or as fast and lighter; it is the best then."""
        before = self.best_time, self.best_peak
        for batch in _batches(self._leaves(time_limit, memory_limit)):
            if self._try(batch) and (self.best_time, self.best_peak) < before:
                return True
        return False

    def _lightest(self) -> None:
        """Lower the peak of the best cut until none as fast is lighter."""
        allowed = [time + self.update <= self.best_time for time in self.tables.time]
        entries = [np.where(ok, memory, UNREACHED) for ok, memory in zip(allowed, self.tables.memory, strict=True)]
        least, _ = self.tables.smallest_maximum(entries)
        if least < self.best_peak and not self._improve(self.best_time, least):
            while self._improve(self.best_time, self.best_peak - 1):
                pass

    def _earliest(self) -> None:
        """The first of the cuts that are as good as the best."""
        for batch in _batches(self._leaves(self.best_time, self.best_peak), first=1):
            for borders, time in zip(batch, self._times(batch), strict=True):
                if time == self.best_time:
                    self.best = borders
                    return

    def _try(self, batch: list[Borders]) -> bool:
        """Simulate cuts and keep the best; whether there was a better one."""
        times = self._times(batch)
        fastest = min(times)
        if fastest > self.best_time:
            return False
        ranked = min(
            (self.table.peak_bytes(borders, self.pipeline), borders)
            for borders, time in zip(batch, times, strict=True)
            if time == fastest
        )
        if (fastest, *ranked) >= (self.best_time, self.best_peak, self.best):
            return False
        self.best_time, (self.best_peak, self.best) = fastest, ranked
        return True

    def _times(self, batch: list[Borders]) -> list[int]:
        self.effort -= (
            len(batch) * self.pipeline.num_stages * num_steps(self.pipeline.num_stages, self.pipeline.micro_batches)
        )
        borders = np.array(batch)
        if self.by_stage:
            ticks = self.table.stage_ticks(borders)
            return [int(time) for time in (ticks.forward + ticks.backward).max(axis=1)]
        return [int(time) for time in self.table.step_times(borders, self.pipeline)]

    def _leaves(self, time_limit: int, memory_limit: int) -> Iterator[Borders]:
        """All cuts within both limits by the tables' reckoning, the earliest borders first."""
        tables, count = self.tables, len(self.table)
        allowed: list[NDArray[np.bool_]] = []
        reaches = np.zeros(count + 1, dtype=bool)
        reaches[count] = True
        for stage in reversed(range(self.pipeline.num_stages)):
            ok = (tables.time[stage] + self.update <= time_limit) & (tables.memory[stage] <= memory_limit)
            ok &= reaches[tables.stop]
            allowed.append(ok)
            reaches = np.append(ok.any(axis=1), False)
        allowed.reverse()
        return self._descend(allowed, time_limit)

    def _descend(self, allowed: list[NDArray[np.bool_]], time_limit: int) -> Iterator[Borders]:
        last = self.pipeline.num_stages - 1
        waiting: list[tuple[Borders, int, int]] = [((0,), 0, 0)]
        while waiting:
            borders, slowest, update = waiting.pop()
            stage, first = len(borders) - 1, borders[-1]
            self.effort -= 1
            if self.effort < 0:
                raise _Exhausted
            for width in np.flatnonzero(allowed[stage][first])[::-1].tolist():
                time = max(slowest, int(self.tables.time[stage][first, width]))
                longest = max(update, int(self.update[first, width]))
                if time + longest > time_limit:
                    continue
                following = (*borders, first + width + 1)
                if stage < last:
                    waiting.append((following, time, longest))
                else:
                    yield following


def _batches(leaves: Iterator[Borders], first: int = 16, largest: int = 512) -> Iterator[list[Borders]]:
    """Growing batches: the first few are often enough."""
    batch: list[Borders] = []
    size = first
    for borders in leaves:
        batch.append(borders)
        if len(batch) == size:
            yield batch
            batch, size = [], min(4 * size, largest)
    if batch:
        yield batch
