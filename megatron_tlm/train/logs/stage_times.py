"""Where the time of a pipeline's step goes, stage by stage: compute, messages, waiting for neighbours, the real bubble.

A mark of the clock is set before a step's first instruction and after each one that DeepSpeed's engine runs; between
two marks lies one instruction. On the CPU a mark is the wall clock. On a GPU it is an event in the stream that the
engine works in, read at the log interval, when the device has long passed it: nothing waits for a mark.

    stage 0   load F send ......receive B | reduce update       a message takes its two ends the same time but for
    stage 1   receive F B send            | reduce update       waiting: of both durations the shorter one moved the
              ^^^^^^^ wait + communication                       data, what the other took beyond that was waiting

So no clocks of two machines are compared. Figures of a stage are means over its data and tensor ranks, hence they add
up to a step. A stage that begins a step before the first one does waits for that too. The first step of a process,
which allocates, is left out.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_tlm.comm.groups import Mesh, all_reduce_sum
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds
from megatron_tlm.plan.schedule import Kind
from megatron_tlm.train.logs.watch import Moment

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "LoadMicroBatch": "load",
        "ForwardPass": "forward",
        "BackwardPass": "backward",
        "SendActivation": "send_activation",
        "RecvActivation": "receive_activation",
        "SendGrad": "send_gradient",
        "RecvGrad": "receive_gradient",
        "ReduceTiedGrads": "reduce_tied",
        "ReduceGrads": "reduce",
        "OptimizerStep": "update",
    }
)
MESSAGES: tuple[Kind, ...] = ("send_activation", "receive_activation", "send_gradient", "receive_gradient")
AFTER: tuple[Kind, ...] = ("reduce_tied", "reduce", "update")  # come once, after the last backward
MOST_STEPS = 16
MOST_NUMBERS = 2**16  # that stages exchange at an interval: half a megabyte
SHOWN_STAGES = 8


class Clock(Protocol):
    """Marks of time, and the seconds from one to another."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float: ...


class WallClock:
    """For a device that has done its work when a call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class StreamClock:
    """The current CUDA stream's own time."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000


class Recorder:
    """Puts a mark behind every instruction of the engine's training steps and keeps the last few steps."""

    def __init__(self, engine: Any, clock: Clock, most: int) -> None:
        self.steps: deque[list[tuple[Kind | None, Any]]] = deque(maxlen=most)
        self._clock, self._seen_one = clock, False
        self._marks: list[tuple[Kind | None, Any]] = []
        # The engine looks its instructions up in this table of its class; its own copy comes first.
        engine._INSTRUCTION_MAP = {
            instruction: self._timed(KINDS[instruction.__name__], handler)
            for instruction, handler in engine._INSTRUCTION_MAP.items()
        }

    def _timed(self, kind: Kind, handler: Callable[..., None]) -> Callable[..., None]:
        def run(engine: Any, **arguments: Any) -> None:
            if not engine.module.training:  # an evaluation
                handler(engine, **arguments)
                return
            if not self._marks:
                self._marks.append((None, self._clock.mark()))
            handler(engine, **arguments)
            self._marks.append((kind, self._clock.mark()))
            if kind == "update":
                self._end_step()

        return run

    def _end_step(self) -> None:
        if self._seen_one:
            self.steps.append(self._marks)
        self._seen_one, self._marks = True, []

    def take(self) -> list[dict[Kind, list[float]]]:
        """Seconds of each instruction by kind, of the steps since the last call, in order."""
        taken = [self._durations(marks) for marks in self.steps]
        self.steps.clear()
        return taken

    def _durations(self, marks: list[tuple[Kind | None, Any]]) -> dict[Kind, list[float]]:
        found: dict[Kind, list[float]] = {kind: [] for kind in KINDS.values()}
        for (_, begin), (kind, end) in pairwise(marks):
            if kind is not None:
                found[kind].append(self._clock.seconds(begin, end))
        return found


class StageTimes:
    """The watcher: at every log interval the stages' times as scalars, and a line on the console."""

    def __init__(self, engine: Any, plan: Plan, mesh: Mesh, interval: int, say: Callable[[str], None]) -> None:
        self._plan, self._mesh, self._interval, self._say = plan, mesh, interval, say
        numbers = len(plan.stages) * len(MESSAGES) * plan.micro_batches
        clock = StreamClock() if engine.device.type == "cuda" else WallClock()
        self._recorder = Recorder(engine, clock, max(1, min(MOST_STEPS, MOST_NUMBERS // numbers)))

    def after_step(self, moment: Moment) -> Mapping[str, float]:
        if moment.step % self._interval:
            return {}
        steps = self._recorder.take()
        if not steps:
            return {}
        times = gather(steps, self._plan, self._mesh)
        self._say(line(times, self._plan.timeline.mean_bubble))
        return times.scalars()

    def close(self) -> None:
        return


def gather(steps: list[dict[Kind, list[float]]], plan: Plan, mesh: Mesh) -> PipelineSeconds:
    """All stages' means over the same steps, from what each rank measured; collective."""
    stage, num_stages, ranks = mesh.coordinate.pipe, len(plan.stages), mesh.grid.size // mesh.grid.pipe
    messages = np.zeros((num_stages, len(steps), len(MESSAGES), plan.micro_batches))
    for step, durations in enumerate(steps):
        for row, kind in enumerate(MESSAGES):
            messages[stage, step, row, : len(durations[kind])] = durations[kind]
    everyones = np.array(all_reduce_sum(messages.ravel().tolist(), mesh.pipe)).reshape(messages.shape)
    communication, wait = split_messages(everyones, stage)
    sums = {kind: sum(sum(durations[kind]) for durations in steps) for kind in KINDS.values()}
    own = (
        sums["load"],
        sums["forward"],
        sums["backward"],
        communication,
        wait,
        sums["reduce_tied"] + sums["reduce"],
        sums["update"],
        sum(value for kind, value in sums.items() if kind not in AFTER),
    )
    table = np.zeros((num_stages, len(own)))
    table[stage] = np.array(own) / (len(steps) * ranks)
    whole = np.array(all_reduce_sum(table.ravel().tolist())).reshape(table.shape)
    return PipelineSeconds(
        steps=len(steps),
        micro_batches=plan.micro_batches,
        seconds=float(whole[0, -1]),  # the first stage's last backward is the step's last
        stages=tuple(StageSeconds(*(float(value) for value in row[:-1])) for row in whole),
        units=tuple(len(indices) for indices in plan.stages),
    )


def split_messages(messages: NDArray[np.float64], stage: int) -> tuple[float, float]:
    """(communication, waiting) of a stage, from how long each message took each end: [stages, steps, MESSAGES, M]."""
    sent_on, received, sent_back, received_back = (messages[:, :, row] for row in range(len(MESSAGES)))
    ends = []
    if stage < len(messages) - 1:
        ends += [(sent_on[stage], received[stage + 1]), (received_back[stage], sent_back[stage + 1])]
    if stage > 0:
        ends += [(received[stage], sent_on[stage - 1]), (sent_back[stage], received_back[stage - 1])]
    moved = sum(float(np.minimum(mine, theirs).sum()) for mine, theirs in ends)
    return moved, sum(float(mine.sum()) for mine, _ in ends) - moved


def line(times: PipelineSeconds, planned_bubble: float) -> str:
    """`stages: compute 310 331 ms | wait 40 21 ms | messages 2 2 ms | bubble measured 12.1 % (planned 11.0 %)`."""
    told = {
        "compute": [taken.compute for taken in times.stages],
        "wait": [taken.wait for taken in times.stages],
        "messages": [taken.communication for taken in times.stages],
    }
    parts = [f"{name} {_milliseconds(values)}" for name, values in told.items()]
    bubble = f"bubble measured {times.mean_bubble:.1%} (planned {planned_bubble:.1%})".replace("%", " %")
    return f"stages: {' | '.join([*parts, bubble])}"


def _milliseconds(seconds: list[float]) -> str:
    """Of every stage in order; of many, the least and the most."""
    shown = seconds if len(seconds) <= SHOWN_STAGES else [min(seconds), max(seconds)]
    # Three digits, but never 1.8e+04.
    values = [f"{1000 * value:.{'3g' if value < 1 else '0f'}}" for value in shown]
    return f"{(' ' if shown is seconds else ' to ').join(values)} ms"
