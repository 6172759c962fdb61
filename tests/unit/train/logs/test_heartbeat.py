"""Signs of life: whole files, at every change and not at every step, gone with nothing else."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.logs.heartbeat import Heartbeat, heartbeat_file, heartbeat_folder


def read(folder: Path, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(heartbeat_file(folder, rank).read_text())
    return told


def test_a_rank_says_what_it_is_at_from_start_to_end(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 3, 8) as heart:
        told = read(tmp_path, 3)
        assert (told["rank"], told["world_size"], told["pid"]) == (3, 8, os.getpid())
        assert (told["phase"], told["step"]) == ("starting", 0)
        heart.beat("training", 7)
        heart.beat("saving")
        assert (read(tmp_path, 3)["phase"], read(tmp_path, 3)["step"]) == ("saving", 7)
    assert read(tmp_path, 3)["phase"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00003.json"]


def test_a_rank_that_raises_has_failed(tmp_path: Path) -> None:
    def fail() -> None:
        with Heartbeat(tmp_path, 0, 1) as heart:
            heart.beat("training", 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (read(tmp_path)["phase"], read(tmp_path)["step"]) == ("failed", 4)


def test_steps_are_written_every_few_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("megatron_tlm.train.logs.heartbeat.time.monotonic", lambda: now)
    heart, seen = Heartbeat(tmp_path, 0, 1, every_seconds=5), []
    for step in range(1, 9):
        heart.beat("training", step)
        seen.append((now, read(tmp_path)["step"]))
        now += 2
    assert [step for _, step in seen] == [1, 1, 1, 4, 4, 4, 7, 7]
    first = read(tmp_path)["since"]
    heart.beat("evaluating")
    assert read(tmp_path)["phase"] == "evaluating"
    assert read(tmp_path)["since"] >= first


def test_ranks_that_are_no_more_are_forgotten_by_rank_0(tmp_path: Path) -> None:
    for rank in range(4):
        Heartbeat(tmp_path, rank, 4).beat("training", 1)
    (tmp_path / "rank-notes.json").write_text("{}")
    Heartbeat(tmp_path, 1, 2).__enter__()
    assert len(list(tmp_path.iterdir())) == 5
    Heartbeat(tmp_path, 0, 2).__enter__()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-00000.json", "rank-00001.json", "rank-notes.json"]


def test_a_full_disk_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*anything: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("megatron_tlm.train.logs.heartbeat.os.replace", full)
    with Heartbeat(tmp_path, 2, 4) as heart:
        heart.beat("training", 1)
    told = capsys.readouterr().err
    assert told.startswith("rank 2: heartbeats = not written any more (No space left on device); training goes on")
    assert told.count("\n") == 1


def test_a_folder_that_cannot_be_is_told_with_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with Heartbeat(tmp_path / "file" / "beats", 0, 1) as heart:
        heart.beat("training", 1)
    assert capsys.readouterr().err == (
        "rank 0: heartbeats = not written any more (Not a directory); training goes on without it, a file is in the "
        "place of a folder above it, give another folder\n"
    )


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Heartbeat(None, 0, 1) as heart:
        heart.beat("training", 1)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_the_logs_unless_given() -> None:
    assert heartbeat_folder(LoggingConfig()) is None
    assert heartbeat_folder(LoggingConfig(log_dir="l")) == Path("l/heartbeats")
    assert heartbeat_folder(LoggingConfig(log_dir="l", heartbeat_dir="h")) == Path("h")
