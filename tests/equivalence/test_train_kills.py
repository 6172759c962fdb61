"""Ranks die by SIGKILL at any moment of a run; started again it ends as if nothing had been."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.schema import Config, DataConfig
from tests.equivalence.killing import random_corpus, survive
from tests.equivalence.launching import assert_equal_bits, events_of, launch, metrics_of, run_config, tensors_of

SLOW = "TLM_SLOW_TESTS" in os.environ


def killed_run(folder: Path, prefix: str, **changes: object) -> Config:
    """Saved every second step, evaluated every fourth, its sample orders kept on disk."""
    config = run_config(folder, save_interval=2, keep_last=2, eval_interval=4, **changes)
    data = DataConfig(data_path=(prefix,), split="80,20,0", data_cache_path=str(folder / "cache"))
    return replace(config, data=data)


def survived(tmp_path: Path, kills: int, ranks: int, **changes: object) -> None:
    prefix = random_corpus(tmp_path / "data", documents=200)
    quiet, killed = (killed_run(tmp_path / name, prefix, **changes) for name in ("quiet", "killed"))
    assert launch(quiet, ranks, timeout_seconds=240).codes == [0] * ranks
    story = survive(killed, ranks, kills, seed=kills)
    assert story.attempts[-1].codes == [0] * ranks, story.attempts[-1].complained
    assert len(story.kills) == kills
    assert metrics_of(killed) == metrics_of(quiet)
    assert_equal_bits(tensors_of(killed), tensors_of(quiet))
    root = Path(killed.checkpoint.save or "")
    last = killed.training.train_iters or 0
    kept = [f"step-{step:08d}" for step in (last - 2, last)]
    assert sorted(path.name for path in root.iterdir()) == ["latest", *kept], "nothing half is left"
    starts = [event for event in events_of(killed) if event["event"] == "start"]
    assert [event["restarts"] for event in starts] == sorted(event["restarts"] for event in starts)
    assert f"start {kills + 1} of this run: it goes on from {root}" in story.attempts[-1].said
    assert "lost: " in story.attempts[-1].said


def test_four_kills_leave_no_trace(tmp_path: Path) -> None:
    """At the start, in a save, in a step, in an evaluation."""
    survived(tmp_path, kills=4, ranks=2, train_iters=12)


@pytest.mark.skipif(not SLOW, reason="twenty restarts take minutes; set TLM_SLOW_TESTS=1")
def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    survived(tmp_path, kills=20, ranks=2, train_iters=60, pipeline_model_parallel_size=2)
