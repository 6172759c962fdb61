"""The learning rate against Megatron's own arithmetic, written out again step by step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.config.schema import DecayStyle, OptimizerConfig
from megatron_tlm.errors import ConfigError
from megatron_tlm.train.engines.schedule import build_schedule

STYLES: tuple[DecayStyle, ...] = ("cosine", "linear", "constant", "WSD", "inverse-square-root")


def megatron(config: OptimizerConfig, decay: int, warmup: float, num_steps: int) -> float:
    """optimizer_param_scheduler.py::get_lr, in steps instead of samples."""
    if warmup > 0 and num_steps <= warmup:
        return config.lr_warmup_init + ((config.lr - config.lr_warmup_init) * float(num_steps) / float(warmup))
    if config.lr_decay_style == "constant":
        return config.lr
    if num_steps > decay:
        return config.min_lr
    if config.lr_decay_style == "inverse-square-root":
        lr = config.lr * math.sqrt(max(warmup, 1)) / math.sqrt(max(num_steps, 1))
        return max(config.min_lr, lr)
    ratio = float(num_steps - warmup) / float(decay - warmup)
    if config.lr_decay_style == "linear":
        coefficient = 1.0 - ratio
    elif config.lr_decay_style == "cosine":
        coefficient = 0.5 * (math.cos(math.pi * ratio) + 1.0)
    else:
        assert config.lr_wsd_decay_iters is not None
        start = decay - config.lr_wsd_decay_iters
        if num_steps <= start:
            coefficient = 1.0
        else:
            coefficient = (2.0 * math.pow(0.5, float(num_steps - start) / float(config.lr_wsd_decay_iters))) - 1.0
    return config.min_lr + coefficient * (config.lr - config.min_lr)


@given(
    style=st.sampled_from(STYLES),
    warmup=st.integers(0, 10),
    decay=st.integers(21, 60),
    wsd=st.integers(1, 10),
    step=st.integers(0, 100),
)
def test_every_style_is_megatrons(style: DecayStyle, warmup: int, decay: int, wsd: int, step: int) -> None:
    config = OptimizerConfig(
        lr=3e-4,
        min_lr=3e-5,
        lr_decay_style=style,
        lr_decay_iters=decay,
        lr_warmup_iters=warmup,
        lr_wsd_decay_iters=wsd,
        lr_warmup_init=1e-6,
    )
    assert build_schedule(config, 1000)(step) == pytest.approx(megatron(config, decay, warmup, step), rel=1e-12)


def test_a_fraction_of_the_decay_warms_up_the_same_way() -> None:
    fraction = build_schedule(OptimizerConfig(lr=1.0, lr_warmup_fraction=0.25), train_iters=40)
    whole = build_schedule(OptimizerConfig(lr=1.0, lr_warmup_iters=10), train_iters=40)
    assert [fraction(step) for step in range(45)] == [whole(step) for step in range(45)]
    assert fraction(5) == 0.5
    assert fraction(10) == 1.0
    assert fraction(40) == 0.0


def test_the_first_step_of_a_warm_up_starts_at_its_initial_rate() -> None:
    assert build_schedule(OptimizerConfig(lr=1.0, lr_warmup_iters=4, lr_warmup_init=0.1), 10)(0) == 0.1


def test_wsd_is_flat_and_then_falls_to_the_minimum() -> None:
    schedule = build_schedule(OptimizerConfig(lr=1.0, min_lr=0.1, lr_decay_style="WSD"), train_iters=100)
    assert {schedule(step) for step in range(91)} == {1.0}
    assert schedule(95) == pytest.approx(0.1 + 0.9 * (2 * 0.5**0.5 - 1))
    assert schedule(100) == pytest.approx(0.1)


def test_a_warm_up_that_fills_the_decay_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr_warmup_iters = 10 asks for 10 steps .* lr_decay_iters = 10; shorten"):
        build_schedule(OptimizerConfig(lr_warmup_iters=10), train_iters=10)
    with pytest.raises(ConfigError, match=r"lr_warmup_fraction = 1 asks for 10 steps"):
        build_schedule(OptimizerConfig(lr_warmup_fraction=1.0), train_iters=10)


def test_a_wsd_decay_longer_than_what_is_left_is_refused() -> None:
    config = OptimizerConfig(lr_decay_style="WSD", lr_wsd_decay_iters=8, lr_warmup_iters=3)
    with pytest.raises(ConfigError, match=r"lr_wsd_decay_iters = 8 and 3 steps of warm-up exceed lr_decay_iters = 10"):
        build_schedule(config, train_iters=10)
