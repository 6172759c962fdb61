"""When a run stops before its end, and what it does about a step that went wrong."""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.config.field import above_zero, at_least, at_most, option
from megatron_tlm.errors import ConfigError

OnNonfinite = Literal["stop", "skip", "rollback"]
OnSpike = Literal["ignore", "tell", "skip", "rollback", "stop"]


@dataclass(frozen=True)
class ResilienceConfig:
    """Wishes to stop, and bad steps: a loss or gradient norm that is not finite, or far above those before."""

    exit_duration_in_mins: float | None = option(None, "save and stop once the run has lasted so many minutes")
    stop_file: str | None = option(None, "save and stop once this file is there", metavar="FILE")
    on_nonfinite: OnNonfinite = option(
        "stop",
        "a loss or gradient norm that is not finite: stop, leave the step's update out, or go back to the last "
        "checkpoint and on behind the step's samples",
    )
    on_spike: OnSpike = option("ignore", "a loss or gradient norm far above the last ones: the same, or only tell")
    spike_sigmas: float = option(6.0, "far above is this many standard deviations above the mean")
    spike_window: int = option(128, "of so many steps, once half of them are taken")
    bad_step_limit: int = option(10, "steps left out or gone back from, among 1000, after which the run stops")
    iterations_to_skip: tuple[int, ...] = option((), "steps whose samples are read and not trained on")

    def __post_init__(self) -> None:
        at_least("resilience", self, {"spike_window": 2, "bad_step_limit": 0})
        at_most("resilience", self, {"spike_window": 100_000, "exit_duration_in_mins": 2**30})
        above_zero("resilience", self, ("spike_sigmas",))
        for step in self.iterations_to_skip:
            if step < 1:
                raise ConfigError(
                    f"resilience.iterations_to_skip = {step} is below 1, the first step's number; leave it out"
                )
        if self.exit_duration_in_mins is not None:
            above_zero("resilience", self, ("exit_duration_in_mins",))
