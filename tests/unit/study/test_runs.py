"""What a run's folder says of it, however damaged."""

from pathlib import Path

import pytest

from megatron_tlm.study.runs import Point, read_metrics

GOOD = (
    b'{"step": 1, "loss": 4.0, "tokens": 64, "seconds": 0.5}\n{"step": 1, "valid_loss": 4.5}\n'
    b'{"step": 2, "loss": null, "tokens": 128, "seconds": 0.25}\n{"step": 2, "valid_loss": null}\n'
)
READ = (
    (Point(1, 64, 4.0), Point(2, 128, None)),
    (Point(1, 64, 4.5), Point(2, 128, None)),
    0.75,
)


def test_losses_with_their_tokens(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none") == ((), (), 0.0)
    (tmp_path / "metrics.jsonl").write_bytes(GOOD)
    assert read_metrics(tmp_path / "metrics.jsonl") == READ


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe",
        b"5",
        b"[" * 100_000,
        b'{"loss": 1.0}',
        b'{"step": 3, "loss": 1.0}',
        b'{"step": 3, "loss": 1.0, "tokens": "x", "seconds": 1.0}',
        b'{"step": 1e400, "valid_loss": 1.0}',
        b'{"step": 3, "valid_loss": "x"}',
        b'{"step": 3, "valid_loss": [1]}',
        b'{"step": 3, "lo',
    ],
    ids=lambda damage: repr(damage)[:30],
)
def test_damaged_lines_are_passed_over(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(damage + b"\n" + GOOD + damage)
    assert read_metrics(tmp_path / "metrics.jsonl") == READ


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity"])
def test_a_loss_beyond_the_numbers_is_none(loss: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 3, "valid_loss": {loss}}}\n')
    assert read_metrics(tmp_path / "metrics.jsonl") == ((), (Point(3, 0, None),), 0.0)
