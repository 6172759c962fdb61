"""What looks on while a run goes: told of every finished step on every rank, and may add numbers to the log's line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from megatron_tlm.train.engines.engine import StepResult


@dataclass(frozen=True)
class Moment:
    """A step just taken, as this rank saw it; `step` counts from 1, `wait_seconds` of its `seconds` went for data."""

    step: int
    result: StepResult
    seconds: float
    wait_seconds: float


class Watcher(Protocol):
    """Sees the same steps on every rank, so it may be collective; it changes nothing of the training."""

    def after_step(self, moment: Moment) -> Mapping[str, float]:
        """Numbers by their name in TensorBoard and metrics.jsonl, of the rank that logs; empty where none are due."""

    def close(self) -> None:
        """Called once, however the run ends."""


def watched(watchers: Sequence[Watcher], moment: Moment) -> dict[str, float]:
    """What all of them add to the log's line."""
    return {name: value for watcher in watchers for name, value in watcher.after_step(moment).items()}
