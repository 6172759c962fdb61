"""Differences are found whatever the layout, and measured."""

from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.compare import differences, fact_differences
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import facts, model_shape, row_halves, save, values


def compare(tmp_path: Path, theirs: dict[tuple[str, str], torch.Tensor]) -> list[tuple[object, ...]]:
    mine = values(model_shape())
    one = save(tmp_path / "a", mine, facts(model_shape()))
    other = save(tmp_path / "b", theirs, facts(model_shape(), step=11, grid=Grid(tensor=2)), boxes=row_halves(theirs))
    with Reader(one) as ours, Reader(other) as others:
        return [
            (f"{item.role}/{item.name}", item.reason, item.differing, item.largest, item.relative)
            for item in differences(ours, others)
        ]


def test_another_layout_is_no_difference(tmp_path: Path) -> None:
    assert compare(tmp_path, values(model_shape())) == []


def test_what_differs_is_measured(tmp_path: Path) -> None:
    theirs = values(model_shape())
    changed = theirs["layers.0.mlp.up.weight", "exp_avg"]
    norm = changed.double().norm().item()
    changed[3, 2] += 2.0
    changed[4, 1] -= 1.0
    ((name, reason, differing, largest, relative),) = compare(tmp_path, theirs)
    assert (name, reason, differing) == ("exp_avg/layers.0.mlp.up.weight", "values", 2)
    assert largest == pytest.approx(2.0, rel=1e-6)
    assert relative == pytest.approx(5**0.5 / norm, rel=1e-6)


def test_no_number_differs_from_a_number_but_not_from_itself(tmp_path: Path) -> None:
    theirs = values(model_shape())
    theirs["embedding.weight", "master"][0, 0] = torch.nan
    ((name, _, differing, largest, relative),) = compare(tmp_path, theirs)
    assert (name, differing, largest, relative) == ("master/embedding.weight", 1, torch.inf, torch.inf)
    path = tmp_path / "b" / "step-00000011"
    with Reader(path) as ours, Reader(path) as others:
        assert list(differences(ours, others)) == []


def test_what_only_one_has_is_named(tmp_path: Path) -> None:
    theirs = values(model_shape())
    theirs["embedding.weight", "momentum"] = torch.ones(3)
    del theirs["embedding.weight", "exp_avg"]
    theirs["head.norm.weight", "exp_avg"] = torch.ones(1)
    theirs["head.norm.weight", "master"] = theirs["head.norm.weight", "master"].double()
    assert [(name, reason) for name, reason, *_ in compare(tmp_path, theirs)] == [
        ("exp_avg/embedding.weight", f"only in {tmp_path / 'a' / 'step-00000010'}"),
        ("exp_avg/head.norm.weight", "shape [8] and [1]"),
        ("master/head.norm.weight", "dtype F32 and F64"),
        ("momentum/embedding.weight", f"only in {tmp_path / 'b' / 'step-00000011'}"),
    ]


def test_facts_are_compared_key_by_key() -> None:
    ours, theirs = facts(model_shape(tied=True)), facts(model_shape(), step=11, grid=Grid(tensor=2))
    found = {address: pair for address, *pair in fact_differences(ours, theirs)}
    assert found["step"] == [10, 11]
    assert found["layout.tensor"] == [1, 2]
    assert found["shape.tied_embeddings"] == [True, False]
    assert found["config.parallel.tensor_model_parallel_size"] == [1, 2]
    assert "config.model.seq_length" not in found
