"""A study becomes ordinary configurations that differ in their arm, rate and seed alone, at equal budgets."""

from pathlib import Path

import pytest

from megatron_tlm.config.dump import dump, parse
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.study.design import RunId
from megatron_tlm.study.record import differences, run_facts
from tests.unit.study.studies import ARMS, design

WIDER = {"wide": {"model": {"ffn_hidden_size": 128}}}


def test_a_run_is_the_file_the_arm_the_rate_and_the_seed(tmp_path: Path) -> None:
    own = design(tmp_path)
    config = own.config(RunId("", "cosine", 0.004, 3))
    assert config.taper.taper_schedule == "cosine"
    assert (config.optimizer.lr, config.training.seed) == (0.004, 3)
    folder = str(own.folder / "runs" / "cosine" / "lr-0.004" / "seed-3")
    assert config.checkpoint.save == config.checkpoint.load == f"{folder}/checkpoints"
    assert config.checkpoint.allow_fresh_start
    assert (config.checkpoint.keep_last, config.checkpoint.save_interval) == (1, 1)
    assert config.logging.log_dir == f"{folder}/log"
    assert parse(dump(config)) == config


def test_the_last_rate_keeps_its_ratio_to_the_peak(tmp_path: Path) -> None:
    own = design(tmp_path)
    rates = {rate: own.config(RunId("", "uniform", rate, 1)).optimizer.min_lr for rate in (0.001, 0.003)}
    assert rates == {0.001: 0.0001, 0.003: 0.0003}
    alone = design(tmp_path, base={"optimizer": {"min_lr": 1e-4}})
    with pytest.raises(ConfigError, match=r"min_lr = 0.0001 has no optimizer.lr beside it; give both"):
        alone.config(RunId("", "uniform", 0.001, 1))


def test_arms_differ_in_nothing_but_themselves(tmp_path: Path) -> None:
    """The same data, split, seed, batch and length: hence the same samples in the same order."""
    own = design(tmp_path)
    one, other = (run_facts(own.config(RunId("", arm, 0.001, 1))) for arm in ARMS)
    assert differences(one, other) == ["taper.taper_schedule uniform is now cosine"]


def test_budgets_are_equal_to_the_parameter_and_the_flop(tmp_path: Path) -> None:
    budgets = design(tmp_path).budgets
    uniform, cosine = budgets["", "uniform"], budgets["", "cosine"]
    assert (uniform.parameters, uniform.flops_per_token) == (cosine.parameters, cosine.flops_per_token)
    assert uniform.tokens == cosine.tokens == 6 * 4 * 16
    assert (uniform.widths, cosine.widths) == ((64, 64, 64), (96, 64, 32))
    # Embedding and head are one matrix of 128 x 32, and the last norm is outside the layers too.
    assert uniform.parameters - uniform.non_embedding == 128 * 32 + 32


@pytest.mark.parametrize("groups", [{}, {"groups": {"small": {}, "wide": {"model": {"ffn_hidden_size": 128}}}}])
def test_another_budget_is_refused_with_both_numbers(tmp_path: Path, groups: dict[str, object]) -> None:
    own = design(tmp_path, arms={**ARMS, "wide": {"model": {"ffn_hidden_size": 96}}}, **groups)
    with pytest.raises(ConfigError, match=r"arms.wide = .*\d+ parameters and uniform has 35040; arms are"):
        _ = own.budgets


def test_groups_have_budgets_of_their_own(tmp_path: Path) -> None:
    own = design(tmp_path, groups={"small": {}, "large": {"model": {"ffn_hidden_size": 128}}})
    assert own.budgets["small", "uniform"].parameters < own.budgets["large", "uniform"].parameters
    assert own.budgets["large", "cosine"].widths == (192, 128, 64)
    assert [run.path for run in own.tuning_runs()][:3] == [
        "small/uniform/lr-0.002/seed-1",
        "small/cosine/lr-0.002/seed-1",
        "large/uniform/lr-0.002/seed-1",
    ]


def test_an_arm_that_cannot_be_built_is_refused_before_any_step(tmp_path: Path) -> None:
    own = design(tmp_path, arms={**ARMS, "steep": {"taper": {"taper_start": 1.6, "taper_end": 0.4}}})
    with pytest.raises(PlanError, match=r"taper_start x baseline = 102.4"):
        _ = own.budgets


def test_without_evaluation_there_is_nothing_to_compare(tmp_path: Path) -> None:
    own = design(tmp_path, base={"training": {"train_iters": 6, "eval_iters": 0}})
    with pytest.raises(ConfigError, match=r"eval_iters = 0 and arms are compared by validation loss"):
        _ = own.budgets
