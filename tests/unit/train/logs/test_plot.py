"""The loss as a picture."""

import json
from pathlib import Path

from megatron_tlm.train.logs.plot import read_curves, write_loss_plot


def test_curves_are_read_from_the_metrics(tmp_path: Path) -> None:
    records = [{"step": 1, "loss": 3.0}, {"step": 1, "valid_loss": 3.5}, {"step": 2, "loss": 2.0}]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    assert read_curves(metrics) == (([1, 2], [3.0, 2.0]), ([1], [3.5]))
    write_loss_plot(metrics, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    write_loss_plot(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()


def test_lines_that_are_no_points_are_left_out(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(
        b'\xff\n{"step": 1, "loss": 2.0}\n{"step": "x", "loss": 2.0}\n{"loss": 2.0}\n{"step": 2, "loss": [1]}\n'
    )
    assert read_curves(metrics) == (([1], [2.0]), ([], []))
