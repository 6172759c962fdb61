"""Novelty during training: the same numbers at any layout, and a run that is not changed by it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.launching import launch, losses_of, run_config


def novelty_run(folder: Path, ranks: int, **changes: Any) -> tuple[dict[int, dict[str, float]], list[float], str]:
    """What was logged of novelty by step, the losses, and the console."""
    config = run_config(folder, save=None, train_iters=6, eval_iters=1, **changes)
    config = replace(config, logging=replace(config.logging, novelty_interval=3))
    ended = launch(config, ranks)
    assert ended.codes == [0] * ranks, ended.complained
    records = [json.loads(line) for line in (folder / "log/metrics.jsonl").read_text().splitlines()]
    seen = {
        record["step"]: {name: value for name, value in record.items() if name.startswith("rho_")}
        for record in records
        if "loss" in record
    }
    return seen, losses_of(config), ended.said


def test_any_layout_measures_the_same_and_trains_the_same(tmp_path: Path) -> None:
    alone, losses, said = novelty_run(tmp_path / "one", 1, micro_batch_size=2)
    assert [step for step, found in alone.items() if found] == [3, 6]
    assert "rho_mlp/layer 0" in alone[3]
    assert said.count("novelty at step ") == 2
    assert alone[3] != alone[6]
    cut = {"pipeline_model_parallel_size": 2, "pipeline_cuts": ("layers.1.mlp",), "zero_stage": 0}
    shared = {"zero_stage": 3, "micro_batch_size": 1}
    for name, ranks, changes in (("cut", 2, {"micro_batch_size": 2, **cut}), ("data", 2, shared)):
        found, their_losses, _ = novelty_run(tmp_path / name, ranks, **changes)
        for step in (3, 6):
            assert found[step] == pytest.approx(alone[step], abs=1e-4), name
        assert their_losses == pytest.approx(losses, rel=1e-5), name
    unwatched = run_config(tmp_path / "plain", save=None, train_iters=6, micro_batch_size=2)
    launch(unwatched, 1)
    assert losses_of(unwatched) == losses
