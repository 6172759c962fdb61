"""What is read of a log folder, however its run ended."""

import json
from pathlib import Path

import pytest

from megatron_tlm.errors import ConfigError
from megatron_tlm.report import read
from megatron_tlm.report.read import read_run
from megatron_tlm.train.logs import log
from megatron_tlm.train.logs.events import EVENTS_NAME
from tests.unit.report.logs import start, step, write_logs


def test_figures_become_curves_under_their_path(tmp_path: Path) -> None:
    records = [
        step(1, tokens_by_source={"books": 3}, levels=[{"grad_norm": 1.0}, {"grad_norm": 2.0}], mfu=None, note="x"),
        {"step": 1, "valid_loss": 4.0, "finished": True},
        step(2),
    ]
    run = read_run(write_logs(tmp_path, records))
    assert list(run.curve("loss").xs) == [1, 2]
    assert list(run.curve("tokens_by_source/books").ys) == [3]
    assert list(run.curve("levels/1/grad_norm").ys) == [2]
    assert list(run.curve("valid_loss").ys) == [4]
    assert {"mfu", "note", "step", "finished"} & run.curves.keys() == set()
    assert not run.curve("absent")
    assert run.last_step == 2


def test_a_killed_run_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    folder = write_logs(tmp_path, [step(1), step(2)], [start()])
    for name in ("metrics.jsonl", "events.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'[1]\n"text"\n{"step": "three"}\n{"step": 3, "lo\xff')
    (folder / "heartbeats").mkdir()
    (folder / "heartbeats" / "rank-00000.json").write_text(json.dumps({"rank": 0}))
    (folder / "heartbeats" / "rank-00001.json").write_text('{"ra')
    run = read_run(folder)
    assert (run.last_step, len(run.events)) == (2, 2)
    assert run.heartbeats == ({"rank": 0},)


def test_a_run_that_was_started_again_has_not_ended(tmp_path: Path) -> None:
    events = [start(), {"event": "stop", "step": 3, "cause": "SIGTERM"}]
    ended = read_run(write_logs(tmp_path / "a", [step(1)], events))
    assert ended.ending is not None
    assert ended.ending["cause"] == "SIGTERM"
    again = read_run(write_logs(tmp_path / "b", [step(1)], [*events, start(ranks=7)]))
    assert again.ending is None
    assert again.start["ranks"] == 7
    assert len(again.of_kind("start", "stop")) == 3


def test_what_is_no_log_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LOGDIR = .*/none is no folder; give the --log-dir of a run"):
        read_run(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"LOGDIR = .* holds 0 files of a run, metrics.jsonl or events.jsonl is need"):
        read_run(tmp_path)


def test_the_names_are_those_that_training_writes() -> None:
    assert (read.METRICS_NAME, read.CONFIG_NAME, read.EVENTS_NAME) == (log.METRICS_NAME, log.CONFIG_NAME, EVENTS_NAME)


def test_figures_that_cannot_be_drawn_and_lines_nested_without_end_are_passed_over(tmp_path: Path) -> None:
    deep: dict[str, object] = {"a": 1}
    for _ in range(500):
        deep = {"a": deep}
    lines = [step(1, grad_norm=float("nan"), lr=10**400), {"step": 10**400, "loss": 1.0}, step(2, odd=deep)]
    folder = write_logs(tmp_path, lines)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": true, "loss": 1}\n{"step": 3, "loss": 1e999}\n')
        file.write('{"step": 4, "loss": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    (folder / "heartbeats").mkdir()
    (folder / "heartbeats" / "rank-00000.json").write_text("[" * 100_000)
    run = read_run(folder)
    assert list(run.curve("loss").xs) == [1, 2]
    assert not run.curve("grad_norm")
    assert list(run.curve("lr").xs) == [2]
    assert run.heartbeats == ()
