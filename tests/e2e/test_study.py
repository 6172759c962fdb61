"""A real study of two small runs: killed while it trains, continued, and the same report as one that nobody touched."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from megatron_tlm.study.runs import is_locked, read_metrics
from tests.e2e.commands import ROOT, megatron_tlm

STUDY = {
    "model": {
        "num_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "seq_length": 16,
        "ffn_hidden_size": 64,
        "vocab_size": 128,
    },
    "training": {"micro_batch_size": 2, "train_iters": 200, "eval_interval": 100, "eval_iters": 1},
    "optimizer": {"lr": 1e-3, "min_lr": 1e-4, "lr_warmup_iters": 5},
    "data": {"mock_data": True},
    "checkpoint": {"save_interval": 50},
    "study": {
        "arms": {
            "uniform": {"taper": {"taper_schedule": "uniform"}},
            "cosine": {"taper": {"taper_schedule": "cosine"}},
        },
        "learning_rates": [0.01],
        "seeds": [1],
    },
}
LIMIT_SECONDS = 120

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a killed study stops its runs through Linux's parent-death signal"
)


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def report(folder: Path, output: str) -> dict[str, bytes]:
    megatron_tlm("study", "report", "two.yaml", "--output", output, cwd=folder).succeeded()
    return {path.name: path.read_bytes() for path in sorted((folder / output / "report").iterdir())}


def test_a_study_that_was_killed_goes_on_to_the_report_of_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    run = ("study", "run", "two.yaml", "--threads-per-run", "1")
    megatron_tlm(*run, "--output", "whole", "--parallel", "2", cwd=tmp_path).succeeded()

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "megatron_tlm", *run, "--output", "cut", "--parallel", "1"]
    first = tmp_path / "cut" / "runs" / "uniform" / "lr-0.01" / "seed-1"
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as study:
        try:
            wait_until(
                lambda: len(read_metrics(first / "log" / "metrics.jsonl")[0]) > 20, "the first run did not start"
            )
        finally:
            study.kill()
    wait_until(lambda: not is_locked(first), "the run outlived its study")
    assert 20 < read_metrics(first / "log" / "metrics.jsonl")[0][-1].step < 200
    told = megatron_tlm("study", "status", "two.yaml", "--output", "cut", cwd=tmp_path).succeeded().out
    assert told.splitlines()[0].split()[1] == "interrupted"
    told = megatron_tlm(*run, "--output", "cut", "--parallel", "2", cwd=tmp_path).succeeded().out
    assert "uniform/lr-0.01/seed-1: goes on, it had come to step" in told
    assert "continued from cut/runs/uniform/lr-0.01/seed-1/checkpoints" in (first / "output.txt").read_text()

    whole, cut = report(tmp_path, "whole"), report(tmp_path, "cut")
    assert whole == cut
    assert b"fingerprints in the checkpoints of 2 of 2 finished runs" in whole["report.md"]
