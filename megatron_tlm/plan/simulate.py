"""One optimizer step of a pipeline, instruction by instruction, as DeepSpeed's engine runs it (see `plan.schedule`).

    stage 0   F0 F1 F2 ..... B0 .. B1 .. B2 | reduce | update
    stage 1      F0 .. F1 .. B0 F2 B1 .. B2 .. | reduce | update        . waits for a neighbour

Messages meet: a sender waits until its neighbour posts the matching receive, and both are busy while the data moves
(blocking point-to-point calls). The tied weight's gradient is summed once both of its stages have come; the update
begins when all stages have reduced, since the gradient norm needs them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.schedule import Instruction, Kind, stage_steps

PARTNERS: dict[Kind, tuple[int, Kind]] = {
    "send_activation": (1, "receive_activation"),
    "receive_activation": (-1, "send_activation"),
    "send_gradient": (-1, "receive_gradient"),
    "receive_gradient": (1, "send_gradient"),
}


@dataclass(frozen=True)
class StageTime:
    """Ticks of one stage: forward and backward of a micro-batch, gradient reduction and update once per step."""

    forward: float
    backward: float
    reduce: float = 0
    update: float = 0


@dataclass(frozen=True)
class Event:
    """What a stage was at from `start` to `end`, having waited since `posted`."""

    stage: int
    kind: Kind
    micro_batch: int | None
    posted: float
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """All events of a step, by stage and time; times in the ticks that went in."""

    num_stages: int
    micro_batches: int
    events: tuple[Event, ...]

    @cached_property
    def step_time(self) -> float:
        return max((event.end for event in self.events), default=0)

    @cached_property
    def _by_stage(self) -> tuple[tuple[Event, ...], ...]:
        rows: list[list[Event]] = [[] for _ in range(self.num_stages)]
        for event in self.events:
            rows[event.stage].append(event)
        return tuple(tuple(row) for row in rows)

    def stage_events(self, stage: int) -> tuple[Event, ...]:
        """What one stage did, in order."""
        return self._by_stage[stage]

    def compute(self, stage: int) -> float:
        """Ticks in forward and backward."""
        return sum(e.end - e.start for e in self.stage_events(stage) if e.kind in ("forward", "backward"))

    def communication(self, stage: int) -> float:
        """Ticks in messages to and from the neighbours, waiting left out."""
        return sum(e.end - e.start for e in self.stage_events(stage) if e.kind in PARTNERS)

    @cached_property
    def pipeline_time(self) -> float:
        """When the last backward has ended: the step without reduction and update."""
        return max((e.end for e in self.events if e.kind in ("forward", "backward")), default=0)

    def bubble(self, stage: int) -> float:
        """Share of the pipeline's time in which the stage does not compute."""
        return 1 - self.compute(stage) / self.pipeline_time if self.pipeline_time else 0.0

    @property
    def mean_bubble(self) -> float:
        return sum(self.bubble(stage) for stage in range(self.num_stages)) / self.num_stages

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose forward has begun and whose backward has not ended."""
        held = most = 0
        for event in self.stage_events(stage):
            held += event.kind == "forward"
            most = max(most, held)
            held -= event.kind == "backward"
        return most


def simulate(stages: Sequence[StageTime], micro_batches: int, *, message: float = 0, tied: float = 0) -> Timeline:
    """The timeline of one step; `message` ticks per message between neighbours, `tied` for the tied weight's sum.

    PlanError for no stage or no micro-batch.
    """
    if not stages:
        raise PlanError("stages = 0 cannot run a step; give 1 or more")
    return Timeline(len(stages), micro_batches, tuple(_Run(stages, micro_batches, message, tied).events()))


class _Run:
    """The state of a simulation: each stage's next instruction and clock."""

    def __init__(self, stages: Sequence[StageTime], micro_batches: int, message: float, tied: float) -> None:
        self.stages = stages
        self.message = message
        self.tied = tied
        count = len(stages)
        self.programs = [
            [instruction for step in stage_steps(stage, count, micro_batches) for instruction in step]
            for stage in range(count)
        ]
        self.next = [0] * count
        self.clock: list[float] = [0] * count
        self.done: list[list[Event]] = [[] for _ in range(count)]

    def events(self) -> list[Event]:
        """Run everybody as far as possible, until all are done; stages that wait for each other are a PlanError."""
        while any(self._current(stage) for stage in range(len(self.stages))):
            if not any(self._advance(stage) for stage in range(len(self.stages))):
                waiting = [f"stage {s}: {self._current(s)}" for s in range(len(self.stages)) if self._current(s)]
                raise PlanError(f"schedule = deadlock of {len(waiting)} stages ({'; '.join(waiting)}); report this")
        return [event for events in self.done for event in events]

    def _current(self, stage: int) -> Instruction | None:
        program = self.programs[stage]
        return program[self.next[stage]] if self.next[stage] < len(program) else None

    def _advance(self, stage: int) -> bool:
        """Run a stage until it has to wait for one that has not come; whether anything was done."""
        moved = False
        while (instruction := self._current(stage)) is not None:
            group = self._group(stage, instruction)
            if group is None:
                break
            start = max(self.clock[member] for member in group)
            for member in group:
                self._record(member, start)
            moved = True
        return moved

    def _group(self, stage: int, instruction: Instruction) -> list[int] | None:
        """The stages that have to be there for this instruction, None while one of them is not."""
        last = len(self.stages) - 1
        if instruction.kind in PARTNERS:
            side, answer = PARTNERS[instruction.kind]
            group, wanted = [stage, stage + side], {stage + side: Instruction(answer, instruction.micro_batch)}
        elif instruction.kind == "update":
            group, wanted = list(range(last + 1)), dict.fromkeys(range(last + 1), instruction)
        elif instruction.kind == "reduce_tied" and self.tied and last and stage in (0, last):
            group, wanted = [0, last], {0: instruction, last: instruction}
        else:
            return [stage]
        return group if all(self._current(member) == want for member, want in wanted.items()) else None

    def _record(self, stage: int, start: float) -> None:
        instruction = self._current(stage)
        assert instruction is not None
        end = start + self._duration(stage, instruction.kind)
        self.done[stage].append(Event(stage, instruction.kind, instruction.micro_batch, self.clock[stage], start, end))
        self.clock[stage] = end
        self.next[stage] += 1

    def _duration(self, stage: int, kind: Kind) -> float:
        times = self.stages[stage]
        if kind in PARTNERS:
            return self.message
        if kind == "reduce_tied":
            return self.tied if len(self.stages) > 1 and stage in (0, len(self.stages) - 1) else 0
        return {
            "forward": times.forward,
            "backward": times.backward,
            "reduce": times.reduce,
            "update": times.update,
        }.get(kind, 0)
