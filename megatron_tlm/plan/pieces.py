"""What a cut is made of and what it is worth: pieces that no stage boundary may part, in whole ticks and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.lattice import StageTicks, Ticks, step_times
from megatron_tlm.plan.schedule import in_flight

LARGEST_STEP = 2**61  # ticks: beyond it int64 sums would wrap


@dataclass(frozen=True)
class Piece:
    """One indivisible run of units on one rank.

    `forward` and `backward` are ticks per micro-batch, `reduce` and `update` ticks per step; `static_bytes` are there
    all the time, `kept_bytes` from a micro-batch's forward to its backward, `working_bytes` only while it runs;
    `parameters` are those of one rank.
    """

    forward: int
    backward: int
    reduce: int = 0
    update: int = 0
    static_bytes: int = 0
    kept_bytes: int = 0
    working_bytes: int = 0
    parameters: int = 0


@dataclass(frozen=True)
class Buffers:
    """Communication buffers of a stage with n parameters, B = min(n, `limit`): `running` B + `running_constant` bytes
    beside the activations, `after` B + `after_constant` once those are gone."""

    limit: int = 0
    running: int = 0
    running_constant: int = 0
    after: int = 0
    after_constant: int = 0


@dataclass(frozen=True)
class Pipeline:
    """What all stages share: their number, the messages between them, the memory of a rank (None: without bound).

    `message` are ticks per message between neighbours, `message_bytes` its size, `tied` the ticks that the first and
    the last stage spend on summing a tied weight's gradient.
    """

    num_stages: int
    micro_batches: int
    message: int = 0
    tied: int = 0
    message_bytes: int = 0
    memory_limit: int | None = None
    buffers: Buffers = Buffers()

    def held(self, stage: int) -> int:
        """Micro-batches in flight on a stage."""
        return in_flight(stage, self.num_stages, self.micro_batches)

    def border_bytes(self, stage: int) -> int:
        """Bytes of the messages a stage holds, DeepSpeed's buffers: what came in and what went out of each micro-batch
        in flight, and one buffer to receive into per neighbour."""
        neighbours = (stage > 0) + (stage < self.num_stages - 1)
        return self.message_bytes * neighbours * (self.held(stage) + 1)


class Spans(NamedTuple):
    """Bytes and parameters of runs of pieces; `at_work` is one micro-batch's share at the fullest moment."""

    static: NDArray[np.int64]
    kept: NDArray[np.int64]
    at_work: NDArray[np.int64]
    parameters: NDArray[np.int64]


class Pieces:
    """The pieces of a model in order, summed from the left so that every stage is a difference."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        for index, piece in enumerate(pieces):
            for name, value in vars(piece).items():
                if value < 0 or value != int(value):
                    raise PlanError(
                        f"pieces[{index}].{name} = {value} is no whole number from 0 on; give ticks or bytes"
                    )
        self.all = tuple(pieces)
        for name in vars(pieces[0]) if pieces else ():
            total = sum(getattr(piece, name) for piece in pieces)
            if total > LARGEST_STEP:
                raise PlanError(f"{name} of all units = {total} exceeds {LARGEST_STEP}; give smaller sizes")
        # Backward runs from the last piece to the first: when one is at work, those after it are done.
        self.at_work = self.kept[1:] + self._column("working_bytes")

    def __len__(self) -> int:
        return len(self.all)

    def _column(self, name: str) -> NDArray[np.int64]:
        return np.array([getattr(piece, name) for piece in self.all], dtype=np.int64)

    def _sums(self, name: str) -> NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self._column(name)))).astype(np.int64)

    @cached_property
    def forward(self) -> NDArray[np.int64]:
        return self._sums("forward")

    @cached_property
    def backward(self) -> NDArray[np.int64]:
        return self._sums("backward")

    @cached_property
    def reduce(self) -> NDArray[np.int64]:
        return self._sums("reduce")

    @cached_property
    def update(self) -> NDArray[np.int64]:
        return self._sums("update")

    @cached_property
    def static(self) -> NDArray[np.int64]:
        return self._sums("static_bytes")

    @cached_property
    def kept(self) -> NDArray[np.int64]:
        return self._sums("kept_bytes")

    def stage_ticks(self, borders: NDArray[np.int64]) -> StageTicks:
        """Ticks of each stage of each cut; borders are [B, S + 1]."""
        return StageTicks(
            *(np.diff(sums[borders], axis=1) for sums in (self.forward, self.backward, self.reduce, self.update))
        )

    def step_times(self, borders: NDArray[np.int64], pipeline: Pipeline) -> Ticks:
        """The simulated step time of each cut, [B]."""
        return step_times(
            self.stage_ticks(borders), pipeline.micro_batches, message=pipeline.message, tied=pipeline.tied
        )

    @cached_property
    def parameters(self) -> NDArray[np.int64]:
        return self._sums("parameters")

    def peaks(self, stage: int, spans: "Spans", pipeline: Pipeline) -> NDArray[np.int64]:
        """Peak memory of a stage for each of many spans of pieces: all micro-batches in flight, one of them at work."""
        buffers = pipeline.buffers
        bucket = np.minimum(spans.parameters, buffers.limit)
        running = (pipeline.held(stage) - 1) * spans.kept + spans.at_work + pipeline.border_bytes(stage)
        running += buffers.running * bucket + buffers.running_constant
        after = buffers.after * bucket + buffers.after_constant
        peaks: NDArray[np.int64] = spans.static + np.maximum(running, after)
        return peaks

    def spans_from(self, first: int, latest: int) -> "Spans":
        """The pieces from `first` up to each of first + 1 .. latest."""
        static, kept, parameters = (
            sums[first + 1 : latest + 1] - sums[first] for sums in (self.static, self.kept, self.parameters)
        )
        at_work = np.maximum.accumulate(self.at_work[first:latest]) - self.kept[first]
        return Spans(static, kept, at_work, parameters)

    def stage_bytes(self, stage: int, first: int, stop: int, pipeline: Pipeline) -> int:
        """Peak memory of a stage that owns the pieces first .. stop - 1."""
        return int(self.peaks(stage, self.spans_from(first, stop), pipeline)[-1])

    def peak_bytes(self, borders: Sequence[int], pipeline: Pipeline) -> int:
        """Peak memory of the fullest stage."""
        return max(self.stage_bytes(s, a, b, pipeline) for s, (a, b) in enumerate(pairwise(borders)))

    def check(self, pipeline: Pipeline) -> None:
        """PlanError for a number of stages or micro-batches that these pieces cannot be cut for."""
        if not 1 <= pipeline.num_stages <= len(self):
            raise PlanError(
                f"num_stages = {pipeline.num_stages} cannot be cut from {len(self)} pieces; use 1 to {len(self)} stages"
            )
        if pipeline.micro_batches < 1:
            raise PlanError(f"micro_batches = {pipeline.micro_batches} leaves nothing to run; give 1 or more")
        total = sum(int(sums[-1]) for sums in (self.forward, self.backward, self.reduce, self.update))
        ticks = (total + 4 * pipeline.message * pipeline.num_stages) * (pipeline.micro_batches + pipeline.num_stages)
        if ticks > LARGEST_STEP:
            raise PlanError(f"step time = up to {ticks} ticks exceeds {LARGEST_STEP}; give a smaller batch or model")
