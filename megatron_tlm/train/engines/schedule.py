"""The learning rate as a pure function of the step, with Megatron's formulae (its OptimizerParamScheduler).

`step` counts the optimizer steps already taken, so the first step of a run asks for step 0; a warm-up therefore begins
at `lr_warmup_init` exactly. Nothing of a schedule is state: a resumed run asks for the same numbers again.

    lr |    ______            warm-up, then cosine, linear, constant, inverse square root, or WSD:
       |   /      \\___        stable at the peak, and a last stretch that falls as 2 * 0.5^x - 1, x from 0 to 1
       |__/_________________ step
"""

import math
from dataclasses import dataclass

from megatron_tlm.config.schema import DecayStyle, OptimizerConfig
from megatron_tlm.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Learning rates between `initial`, `peak` and `minimum`; lengths in optimizer steps, a warm-up's maybe broken."""

    style: DecayStyle
    peak: float
    minimum: float
    initial: float
    warmup_steps: float
    decay_steps: int
    wsd_steps: int

    def __call__(self, step: int) -> float:
        """The rate of the step that follows `step` finished ones."""
        if self.warmup_steps > 0 and step <= self.warmup_steps:
            return self.initial + (self.peak - self.initial) * step / self.warmup_steps
        if self.style == "constant":
            return self.peak
        if step > self.decay_steps:
            return self.minimum
        if self.style == "inverse-square-root":
            return max(self.minimum, self.peak * math.sqrt(max(self.warmup_steps, 1)) / math.sqrt(max(step, 1)))
        return self.minimum + (self.peak - self.minimum) * self._height(step)

    def _height(self, step: int) -> float:
        """Where between minimum (0) and peak (1) the decay stands."""
        if self.style == "WSD":
            fallen = max(0, step - (self.decay_steps - self.wsd_steps)) / self.wsd_steps
            return 2 * math.pow(0.5, fallen) - 1
        ratio = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        return 1 - ratio if self.style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)


def build_schedule(config: OptimizerConfig, train_iters: int) -> Schedule:
    """The schedule of a run of `train_iters` steps; ConfigError where warm-up and decay do not fit into each other."""
    decay = config.lr_decay_iters or train_iters
    warmup: float = config.lr_warmup_iters
    address = f"optimizer.lr_warmup_iters = {config.lr_warmup_iters}"
    if config.lr_warmup_fraction is not None:
        warmup = config.lr_warmup_fraction * decay
        address = f"optimizer.lr_warmup_fraction = {config.lr_warmup_fraction:g}"
    if warmup >= decay and warmup > 0:
        raise ConfigError(
            f"{address} asks for {warmup:g} steps of warm-up within lr_decay_iters = {decay}; "
            "shorten the warm-up or lengthen the decay"
        )
    wsd = config.lr_wsd_decay_iters or max(1, decay // 10)
    if config.lr_decay_style == "WSD" and wsd + warmup > decay:
        raise ConfigError(
            f"optimizer.lr_wsd_decay_iters = {wsd} and {warmup:g} steps of warm-up exceed lr_decay_iters = {decay}; "
            "shorten one of them"
        )
    return Schedule(config.lr_decay_style, config.lr, config.min_lr, config.lr_warmup_init, warmup, decay, wsd)
