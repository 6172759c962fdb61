"""What counts as a bad step, before and after a restart."""

from statistics import fmean, pstdev
from typing import Any

import pytest

from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.train.survival.bad_steps import AMONG, StepJudge

LOSSES = [4.0, 3.9, 4.1, 3.8, 4.0, 3.7]


def judge(**changes: Any) -> StepJudge:
    made = StepJudge(ResilienceConfig(**{"on_spike": "skip", "spike_window": 8, "spike_sigmas": 3.0, **changes}))
    for loss in LOSSES:
        made.accepted(loss, 1.0)
    return made


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("inf"))])
def test_what_is_no_number_is_bad_whatever_was_asked(loss: float, norm: float) -> None:
    verdict = judge(on_spike="ignore", on_nonfinite="rollback").verdict(loss, norm)
    assert verdict is not None
    assert verdict.action == "rollback"
    assert verdict.cause == f"loss = {loss:g} with gradient norm {norm:g} is not finite"


def test_a_spike_lies_so_many_deviations_above_the_mean() -> None:
    bound = fmean(LOSSES) + 3 * pstdev(LOSSES)
    assert judge()(bound - 1e-6, 1.0)
    assert not judge()(bound + 1e-6, 1.0)
    verdict = judge().verdict(9.0, 1.0)
    assert verdict is not None
    assert verdict.cause == f"loss = 9 is above {bound:g}, 3 standard deviations over the mean of the last 6 steps"


def test_a_gradient_norm_is_judged_like_a_loss_and_rest_leaves_room() -> None:
    assert judge()(4.0, 1.0 + 0.0029)
    verdict = judge().verdict(4.0, 1.0 + 0.0031)
    assert verdict is not None
    assert verdict.cause.startswith("gradient norm = 1.0031 is above 1.003, 3 standard deviations")


def test_half_a_window_has_to_be_seen_first() -> None:
    fresh = StepJudge(ResilienceConfig(on_spike="skip", spike_window=8))
    for _ in range(3):
        assert fresh(1e9, 1.0)
        fresh.accepted(1.0, 1.0)
    fresh.accepted(1.0, 1.0)
    assert not fresh(1e9, 1.0)


def test_a_spike_that_is_only_told_is_accepted_and_one_that_is_ignored_not_seen() -> None:
    telling = judge(on_spike="tell")
    assert telling(9.0, 1.0)
    assert telling.verdict(9.0, 1.0) is not None
    assert judge(on_spike="ignore").verdict(9.0, 1.0) is None


def test_the_limit_counts_bad_steps_among_the_last_thousand() -> None:
    made = judge(bad_step_limit=2)
    assert [made.dropped(batch) for batch in (0, 7)] == [1, 2]
    assert not made.too_many
    assert made.dropped(AMONG) == 2
    assert made.dropped(AMONG + 1) == 3
    assert made.too_many
    strict = judge(bad_step_limit=0)
    strict.dropped(5)
    assert strict.too_many


def test_a_resumed_run_judges_alike() -> None:
    first, second = judge(), StepJudge(ResilienceConfig(on_spike="skip", spike_window=8, spike_sigmas=3.0))
    first.dropped(4)
    second.restore(first.facts())
    assert second.facts() == first.facts()
    assert second.verdict(9.0, 1.0) == first.verdict(9.0, 1.0)
    second.dropped(6)
    # Back to that checkpoint: its losses again, and what went wrong since is not forgotten.
    second.accepted(3.6, 1.0)
    second.restore(first.facts())
    assert second.facts() == {**first.facts(), "bad_batches": "4 6"}


def test_a_run_that_looks_for_nothing_stores_nothing() -> None:
    assert judge(on_spike="ignore").facts() == {}
