"""What the loop tells the log of a finished step, and the fixed numbers that turn it into speeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron_tlm.train.engines.engine import StepResult
from megatron_tlm.train.logs.metrics import Speed, measure


@dataclass(frozen=True)
class Scale:
    """What turns seconds into speeds: the run's fixed numbers. `peak_tflops` is per device, None if unknown."""

    tokens_per_step: int
    samples_per_step: int
    flops_per_token: int
    num_devices: int
    peak_tflops: float | None
    train_steps: int

    def speed(self, steps: int, seconds: float) -> Speed:
        return measure(
            steps * self.tokens_per_step,
            seconds,
            flops_per_token=self.flops_per_token,
            num_devices=self.num_devices,
            peak=self.peak_tflops,
        )


@dataclass(frozen=True)
class StepReport:
    """One finished step; `tokens` and `samples` count from the start of the run, `step` from 1.

    `wait_seconds` of its `seconds` it waited for data; `sources` are the tokens trained on by corpus, where counted;
    `scalars` what watchers add, by name.
    """

    step: int
    samples: int
    tokens: int
    result: StepResult
    learning_rate: float
    seconds: float
    wait_seconds: float = 0.0
    sources: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
