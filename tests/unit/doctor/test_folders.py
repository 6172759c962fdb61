"""Folders: writable, of what kind, with room for what will be saved."""

import os
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.schema import CheckpointConfig, Config, LoggingConfig, ModelConfig, TrainingConfig
from megatron_tlm.doctor import folders
from megatron_tlm.doctor.finding import Finding
from megatron_tlm.doctor.folders import checkpoint_bytes, file_system, folder_findings, room, writable
from megatron_tlm.plan.build import Plan, build_plan

Usage = namedtuple("Usage", "total used free")
MODEL = ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=16, vocab_size=64)


def configured(**checkpoint: object) -> tuple[Config, Plan]:
    config = Config(MODEL, checkpoint=CheckpointConfig(**checkpoint))  # type: ignore[arg-type]
    return config, build_plan(config, 64)


def test_a_folder_that_can_be_written_is_made_and_left_empty(tmp_path: Path) -> None:
    (told,) = writable("logging.log_dir", tmp_path / "a" / "b")
    assert told.status == "pass"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    (told,) = writable("logging.log_dir", tmp_path / "log")
    assert told.status == "fail"
    assert told.text == f"{tmp_path / 'log'} cannot be written (File exists)"
    assert told.remedy == "a file is in its place, give another folder"


def test_a_disk_whose_clock_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.time, "time", lambda: 0.0)
    told = list(writable("logging.log_dir", tmp_path))[-1]
    assert (told.check, told.status) == ("clock", "warn")
    assert "s ahead of this node" in told.text


def test_saving_into_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "file_system", lambda folder: "tmpfs")
    (told,) = writable("checkpoint.save", tmp_path)
    assert told.status == "warn"
    assert "is memory (tmpfs)" in told.text


@pytest.mark.skipif(not os.path.exists("/proc/mounts"), reason="mounts are looked up in /proc")
def test_the_kind_of_a_disk_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(tmp_path) != "unknown"


def test_a_load_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    absent = str(tmp_path / "ck")

    def told(**changes: object) -> Finding:
        config, _ = configured(load=absent, **changes)
        (found,) = folder_findings(config, None, None)
        return found

    assert told().text == f"{absent} does not exist on this node"
    assert told(allow_fresh_start=True).status == "pass"
    (tmp_path / "ck").mkdir()
    assert told().status == "pass"


def test_a_checkpoint_is_weights_masters_and_moments() -> None:
    config, plan = configured(save="x")
    assert checkpoint_bytes(config, plan) == 12 * plan.parameters
    assert checkpoint_bytes(replace(config, training=TrainingConfig(bf16=True)), plan) == 14 * plan.parameters
    config, plan = configured(save="x", no_save_optim=True)
    assert checkpoint_bytes(config, plan) == 4 * plan.parameters


@pytest.mark.parametrize(
    ("checkpoint", "fit", "status", "remedy"),
    [
        ({}, 1, "pass", ""),
        ({}, 0.5, "fail", "make room, or give --save a folder on a larger disk"),
        ({"save_interval": 10}, 10, "pass", ""),
        ({"save_interval": 10}, 5.5, "warn", "give --keep-last 4"),
        ({"save_interval": 10}, 1.5, "fail", "make room, or give --save a folder on a larger disk"),
        ({"save_interval": 10, "keep_last": 2}, 3, "pass", ""),
        ({"save_interval": 10, "keep_last": 4}, 4.5, "fail", "make room, or keep fewer than --keep-last 4"),
        ({"save_interval": 10, "keep_last": 2, "keep_every": 20}, 8, "pass", ""),
    ],
)
def test_what_will_be_kept_has_to_fit(
    checkpoint: dict[str, int], fit: float, status: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of 100 steps, on a disk with room for so many checkpoints."""
    config, plan = configured(save=str(tmp_path / "not" / "yet"), **checkpoint)
    free = int(fit * checkpoint_bytes(config, plan))
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda folder: Usage(free, 0, free))
    told = room(config, plan, 100)
    assert (told.status, told.remedy) == (status, remedy)


def test_every_folder_of_the_run_is_looked_at(tmp_path: Path) -> None:
    config, plan = configured(save=str(tmp_path / "ck"))
    config = replace(config, logging=LoggingConfig(log_dir=str(tmp_path / "log")))
    checks = [item.check for item in folder_findings(config, plan, 10)]
    assert checks == ["checkpoint.save", "logging.log_dir", "room for checkpoints"]
