"""Weights & Biases, by a stand-in that notes what it is told: same scalars, same run after a resume, no way around."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from megatron_tlm.config.schema import Config, DataConfig, LoggingConfig, ModelConfig, TrainingConfig
from megatron_tlm.errors import ConfigError
from megatron_tlm.train.logs.log import WritingLog
from megatron_tlm.train.logs.wandb_board import RUN_ID_NAME, WandbBoard, require_wandb
from megatron_tlm.train.prepare import prepare
from tests.unit.train.logs.test_log import SCALE, report


class Wandb(ModuleType):
    """What of theirs is used."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = SimpleNamespace(origin="wandb/__init__.py")  # type: ignore[assignment]
        self.runs: list[Run] = []
        self.refusal: str | None = None

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **asked: Any) -> "Run":
        if self.refusal:
            raise self.Error(self.refusal)
        self.runs.append(Run(self, asked))
        return self.runs[-1]


class Run:
    def __init__(self, wandb: Wandb, asked: dict[str, Any]) -> None:
        self.wandb, self.asked = wandb, asked
        self.metrics: dict[str, str | None] = {}
        self.logged: list[dict[str, float]] = []
        self.finished, self.broken = 0, False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics[name] = step_metric

    def log(self, values: dict[str, float]) -> None:
        if self.broken:
            raise self.wandb.Error("the connection\nis gone")
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def config(folder: Path, **more: Any) -> LoggingConfig:
    return LoggingConfig(log_interval=1, log_dir=str(folder), wandb_project="p", **more)


def run_log(folder: Path, first: int, last: int) -> None:
    log = WritingLog(config(folder, wandb_exp_name="n", wandb_entity="team"), SCALE, first, "training:\n  seed: 1\n")
    for step in range(first + 1, last + 1):
        log.step(report(step))
    log.evaluation(last, 4 * last, 0.5)
    log.close()


def test_it_is_told_what_tensorboard_is_told(tmp_path: Path, wandb: Wandb) -> None:
    run_log(tmp_path, 0, 2)
    [run] = wandb.runs
    assert {key: run.asked[key] for key in ("project", "name", "entity", "dir", "resume")} == {
        "project": "p",
        "name": "n",
        "entity": "team",
        "dir": str(tmp_path),
        "resume": "allow",
    }
    assert run.asked["config"] == {"training": {"seed": 1}}
    assert run.metrics["*"] == "iteration"
    assert [values["iteration"] for values in run.logged] == [1, 2, 2]
    assert run.logged[1]["samples"] == 8
    assert {"lm loss", "learning-rate", "grad-norm", "throughput"} <= run.logged[0].keys()
    assert run.logged[2]["lm loss validation"] == 0.5
    assert run.finished == 1


def test_a_resumed_run_goes_on_with_its_id_and_a_new_one_does_not(tmp_path: Path, wandb: Wandb) -> None:
    run_log(tmp_path, 0, 2)
    run_log(tmp_path, 2, 3)
    run_log(tmp_path, 0, 1)
    first, second, third = (run.asked["id"] for run in wandb.runs)
    assert first == second
    assert first != third
    assert (tmp_path / RUN_ID_NAME).read_text().strip() == third


def test_a_lost_connection_ends_that_log_and_not_the_run(
    tmp_path: Path, wandb: Wandb, capsys: pytest.CaptureFixture[str]
) -> None:
    log = WritingLog(config(tmp_path), SCALE, 0, "")
    wandb.runs[0].broken = True
    for step in (1, 2):
        log.step(report(step))
    log.close()
    told = capsys.readouterr().out
    assert told.count("Weights & Biases = not written any more (the connection is gone); training goes on") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert wandb.runs[0].finished == 1


def test_a_refusal_is_a_sentence(tmp_path: Path, wandb: Wandb) -> None:
    wandb.refusal = "api_key not configured\n(no-tty)"
    with pytest.raises(
        ConfigError,
        match=r"wandb_project = p cannot be logged to \(api_key not configured \(no-tty\)\); run `wandb login`, or s",
    ):
        WandbBoard(config(tmp_path), {}, resumed=False)


def test_a_package_that_is_not_there_is_told_at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else find(name))
    model = ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32)
    whole = Config(model, training=TrainingConfig(train_iters=1), data=DataConfig(mock_data=True))
    prepare(whole, 1)
    with pytest.raises(ConfigError, match=r"wandb_project = p needs the package wandb, which is not installed here"):
        prepare(replace(whole, logging=config(tmp_path)), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_run_left_behind_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match="not installed"):
        require_wandb(config(tmp_path))
