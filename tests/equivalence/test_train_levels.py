"""Hope's levels over a stop in the middle of a window: bit for bit in one layout, the same run in any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.equivalence.launching import assert_equal_bits, launch, losses_of, metrics_of, run_config, tensors_of
from tests.equivalence.test_train_resume import PIPE, TENSOR, ZERO, continued, finish
from tests.equivalence.training import show

HOPE: dict[str, Any] = {"cms_levels": 3, "cms_periods": (1, 2, 4), "ffn_hidden_size": 96}


@pytest.mark.parametrize(
    ("stop", "ranks", "changes"),
    [
        (5, 2, {ZERO: 3, "bf16": True}),
        (6, 2, {PIPE: 2, "cms_update": "sum"}),
        (7, 1, {ZERO: 0}),
    ],
    ids=show,
)
def test_a_stop_inside_a_window_changes_no_bit(stop: int, ranks: int, changes: dict[str, Any], tmp_path: Path) -> None:
    changes = HOPE | changes
    whole = run_config(tmp_path / "whole", **changes)
    half = run_config(tmp_path / "half", exit_interval=stop, **changes)
    finish(whole, ranks)
    finish(half, ranks)
    assert {role for _, role in tensors_of(half)} >= {"weight", "exp_avg", "exp_avg_sq", "window_sum"}
    rest = continued(half, tmp_path / "half", **changes)
    finish(rest, ranks)
    assert metrics_of(rest) == metrics_of(whole)
    assert_equal_bits(tensors_of(rest), tensors_of(whole))


@pytest.fixture(scope="module")
def seven_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A run stopped three steps into the slowest window, on tensor 2, and the same run to its end."""
    folder = tmp_path_factory.mktemp("seven")
    whole, half = (run_config(folder / name, **HOPE, **{TENSOR: 2}) for name in ("whole", "half"))
    half = replace(half, training=replace(half.training, exit_interval=7))
    finish(whole, 2)
    finish(half, 2)
    return half, whole


@pytest.mark.parametrize(("ranks", "changes"), [(1, {ZERO: 0}), (2, {ZERO: 2}), (2, {PIPE: 2})], ids=show)
def test_another_layout_continues_the_window(
    seven_steps: tuple[Any, Any], ranks: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    half, whole = seven_steps
    rest = continued(half, tmp_path, **HOPE, **changes)
    finish(rest, ranks)
    assert_same_end(rest, whole)


def test_one_rank_continues_the_window_of_two_data_ranks(seven_steps: tuple[Any, Any], tmp_path: Path) -> None:
    half = run_config(tmp_path / "half", exit_interval=7, **HOPE, **{ZERO: 2})
    finish(half, 2)
    rest = continued(half, tmp_path, **HOPE)
    finish(rest, 1)
    assert_same_end(rest, seven_steps[1])


def assert_same_end(rest: Any, whole: Any) -> None:
    torch.testing.assert_close(losses_of(rest), losses_of(whole)[7:], rtol=1e-6, atol=0)
    found, wanted = tensors_of(rest), tensors_of(whole)
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=5e-5 * float(wanted[key].abs().max()))


def test_windows_of_other_periods_are_refused(seven_steps: tuple[Any, Any], tmp_path: Path) -> None:
    half, _ = seven_steps
    other = HOPE | {"cms_periods": (1, 2, 5)}
    ended = launch(continued(half, tmp_path, **other), 1)
    assert ended.codes == [2]
    assert "cms_periods = 1 2 5 differs from 1 2 4" in ended.complained
    finish(continued(half, tmp_path / "fresh", no_load_optim=True, **other), 1)


def test_a_run_tells_of_its_levels(seven_steps: tuple[Any, Any]) -> None:
    _, whole = seven_steps
    records = [record for record in metrics_of(whole) if "loss" in record]
    for step, record in enumerate(records, start=1):
        assert [level["updates"] for level in record["levels"]] == [step, step // 2, step // 4]
        assert [level["update_ratio"] is not None for level in record["levels"]] == [True, step % 2 == 0, step % 4 == 0]
        assert all(level["grad_norm"] > 0 for level in record["levels"])
