"""What a pipeline's step was measured to take, stage by stage; training writes it to metrics.jsonl under these names.

stage-forward/0 ... stage-update/0    seconds of a step on stage 0, by what it was at (see `StageSeconds`)
stage-bubble/0                        share of the pipeline's time in which stage 0 did not compute
stage-units/0                         units that stage 0 owned
pipeline-seconds, pipeline-bubble     from stage 0's begin to its last backward; the mean bubble of the stages
pipeline-micro-batches, pipeline-steps    micro-batches of a step; steps that the means are over
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate, count
from typing import Any

from megatron_tlm.errors import PlanError

PIPELINE = "pipeline-"
STAGE = "stage-"


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of a step, the mean over the ranks of a stage.

    `load` takes micro-batches in, `communication` moves messages between neighbours, `wait` is for neighbours that were
    not there yet; `reduce` and `update`, after the last backward, contain what was waited for other ranks there.
    """

    load: float
    forward: float
    backward: float
    communication: float
    wait: float
    reduce: float
    update: float

    @property
    def compute(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class PipelineSeconds:
    """Means over `steps` steps of `micro_batches` each; `units[s]` were owned by stage s, `seconds` from the first
    stage's begin to its last backward, which is the step's last."""

    steps: int
    micro_batches: int
    seconds: float
    stages: tuple[StageSeconds, ...]
    units: tuple[int, ...]

    def bubble(self, stage: int) -> float:
        """Share of the pipeline's time in which a stage does not compute."""
        return 1 - self.stages[stage].compute / self.seconds if self.seconds else 0.0

    @property
    def mean_bubble(self) -> float:
        return sum(map(self.bubble, range(len(self.stages)))) / len(self.stages)

    @property
    def ranges(self) -> tuple[range, ...]:
        """The stages as ranges of unit indices."""
        stops = list(accumulate(self.units))
        return tuple(range(stop - size, stop) for stop, size in zip(stops, self.units, strict=True))

    def scalars(self) -> dict[str, float]:
        """By their names in metrics.jsonl and TensorBoard."""
        told = {
            f"{PIPELINE}seconds": self.seconds,
            f"{PIPELINE}bubble": self.mean_bubble,
            f"{PIPELINE}micro-batches": float(self.micro_batches),
            f"{PIPELINE}steps": float(self.steps),
        }
        for stage, taken in enumerate(self.stages):
            told |= {f"{STAGE}{item.name}/{stage}": getattr(taken, item.name) for item in fields(StageSeconds)}
            told |= {f"{STAGE}bubble/{stage}": self.bubble(stage), f"{STAGE}units/{stage}": float(self.units[stage])}
        return told


def read_scalars(record: Mapping[str, Any]) -> PipelineSeconds | None:
    """The inverse of `scalars`, from a line of metrics.jsonl; None where it holds none. PlanError for a part."""
    if f"{PIPELINE}seconds" not in record:
        return None
    try:
        stages, units = [], []
        for stage in count():
            if f"{STAGE}units/{stage}" not in record:
                break
            units.append(int(record[f"{STAGE}units/{stage}"]))
            taken = {item.name: float(record[f"{STAGE}{item.name}/{stage}"]) for item in fields(StageSeconds)}
            stages.append(StageSeconds(**taken))
        if not stages:
            raise KeyError(f"{STAGE}units/0")
        return PipelineSeconds(
            steps=int(record[f"{PIPELINE}steps"]),
            micro_batches=int(record[f"{PIPELINE}micro-batches"]),
            seconds=float(record[f"{PIPELINE}seconds"]),
            stages=tuple(stages),
            units=tuple(units),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PlanError(
            f"metrics of step {record.get('step')} = {len(units)} stages without all of their times ({error}); leave "
            "the line out"
        ) from error
