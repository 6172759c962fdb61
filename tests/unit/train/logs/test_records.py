"""Files of a line per object: what is kept of them, taken back, mended."""

import errno
import json
import math
import os
import time
from pathlib import Path

import pytest

from megatron_tlm.train.logs.log_guard import LogGuard
from megatron_tlm.train.logs.records import Lost, Records, finite, take_back


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_there_may_be_nothing_to_take_back(tmp_path: Path) -> None:
    assert take_back(tmp_path / "metrics.jsonl", 3) == Lost()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_what_a_step_back_costs_is_counted(tmp_path: Path) -> None:
    steps = [{"step": step, "seconds": 0.5} for step in (1, 2, 3, 4)]
    metrics = written(tmp_path / "metrics.jsonl", *steps, {"step": 4, "valid_loss": 1.0}, ["no", "record"])
    an_hour_ago = time.time() - 3600
    os.utime(metrics, (an_hour_ago, an_hour_ago))
    lost = take_back(metrics, 1)
    assert (lost.steps_again, lost.seconds_again) == (3, 1.5)
    assert lost.seconds_down == pytest.approx(3600, abs=60)
    assert metrics.read_text() == '{"step": 1, "seconds": 0.5}\n'


def test_damaged_lines_are_dropped_and_whole_ones_stay_to_the_byte(tmp_path: Path) -> None:
    whole = b'{"step": 1,  "seconds": 0.5}\n{"step": 2, "seconds": null}\n'
    damage = (b"\xff\xfe\n", b"\0" * 4096 + b"\n", b"[" * 100_000 + b"\n", b'{"step": "3"}\n{"loss": 1}\n7\n{"st')
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(
        whole.join(damage) + b'\n{"step": 9, "seconds": "x"}\n{"step": 9, "seconds": 0.25}\n{"step": 1}'
    )
    assert take_back(metrics, 2).seconds_again == 0.25
    assert metrics.read_bytes() == whole * 3 + b'{"step": 1}\n'


def test_a_disk_without_room_for_the_lines_that_stay_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = written(tmp_path / "metrics.jsonl", {"step": 1}, {"step": 2})
    said: list[str] = []
    records = Records(metrics, LogGuard(said.append))
    monkeypatch.setattr(os, "replace", full)
    records.go_back(1)
    records.append({"step": 2})
    records.close()
    assert said == [
        "metrics.jsonl = not written any more (No space left on device); training goes on without it, make room for "
        "the next run"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert metrics.read_text() == '{"step": 1}\n{"step": 2}\n'


def full(*paths: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "start"}\n{"event": "chec')
    records = Records(path, LogGuard(lambda text: None))
    records.append({"event": "stop"})
    records.close()
    assert path.read_text().splitlines()[-1] == '{"event": "stop"}'
    assert len(path.read_text().splitlines()) == 3


def test_what_is_no_number_in_json_is_null_however_deep() -> None:
    assert finite({"a": math.nan, "b": [1.0, math.inf], "c": {"d": -math.inf}, "e": "x"}) == {
        "a": None,
        "b": [1.0, None],
        "c": {"d": None},
        "e": "x",
    }
