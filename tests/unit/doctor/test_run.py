"""A configuration looked at on one node."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    ModelConfig,
    ParallelConfig,
    TrainingConfig,
)
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.doctor import run
from megatron_tlm.doctor.finding import skipped
from megatron_tlm.doctor.run import examine, planned_memory
from megatron_tlm.plan.build import build_plan

CONFIG = Config(
    ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=16, vocab_size=64),
    training=TrainingConfig(train_iters=2, eval_iters=0),
    parallel=ParallelConfig(tensor_model_parallel_size=2),
    data=DataConfig(mock_data=True),
)


def test_a_sound_configuration_is_planned() -> None:
    found = examine(CONFIG, 4, 4)
    assert found.plan is not None
    assert found.digests == {}
    assert found.findings[0].text == "tensor 2 x pipe 1 x data 2 = 4 ranks"
    assert [item.check for item in found.findings] == ["configuration", "memory", "data"]


def test_what_train_would_refuse_is_told_with_its_remedy() -> None:
    found = examine(CONFIG, 3, 3)
    assert found.plan is None
    told = found.findings[0]
    assert told.text == "world size = 3 is not a multiple of tensor x pipeline = 2 x 1 = 2"
    assert told.remedy.startswith("start 2 or 4 ranks")


def test_data_is_told_by_its_fingerprint(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "corpus", np.dtype(np.uint16)) as writer:
        writer.add_document(np.arange(50))
    prefix = str(tmp_path / "corpus")
    config = replace(CONFIG, data=DataConfig(train_data_path=(prefix,)))
    found = examine(config, 2, 2)
    digest = found.digests[prefix]
    assert digest is not None
    assert (f"data {prefix}", f"fingerprint {digest[:12]}") in [(item.check, item.text) for item in found.findings]
    (tmp_path / "corpus.bin").unlink()
    assert "corpus.bin" in examine(config, 2, 2).findings[0].text


def test_one_fault_hides_no_other(tmp_path: Path) -> None:
    """What is left is judged as far as it can be, a fault is told once, and what could not be reached says so."""
    with IndexedDatasetWriter(tmp_path / "there", np.dtype(np.uint16)) as writer:
        writer.add_document(np.arange(50))
    prefixes = (str(tmp_path / "absent"), str(tmp_path / "there"))
    (tmp_path / "file").touch()
    config = replace(
        CONFIG,
        data=DataConfig(train_data_path=("1", prefixes[0], "2", prefixes[1])),
        checkpoint=CheckpointConfig(save=str(tmp_path / "file" / "ck"), load=str(tmp_path / "no-checkpoint")),
    )
    found = {item.check: item for item in examine(config, 2, 2).findings}
    assert found["configuration"].text == f"{prefixes[0]}.idx does not exist"
    assert found["memory"].status == "pass", "the plan needs no data"
    assert f"data {prefixes[0]}" not in found, "told above"
    assert found[f"data {prefixes[1]}"].status == "pass"
    assert {found[name].status for name in ("goes on from", "checkpoint.save", "checkpoint.load")} == {"fail"}
    # Without a plan neither memory nor room can be judged, the rest can.
    found = {item.check: item for item in examine(config, 3, 3).findings}
    assert found["configuration"].text.startswith("world size = 3 is not a multiple of")
    assert found["memory"] == skipped("memory", run.NO_PLAN)
    assert found["room for checkpoints"].status == "skip"
    assert found[f"data {prefixes[0]}"].text == f"{prefixes[0]}.idx does not exist"
    assert found[f"data {prefixes[1]}"].status == "pass"


@pytest.mark.parametrize(("has", "status"), [(2**40, "pass"), (2**20, "warn")])
def test_memory_is_held_against_the_plan(has: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "available_memory", lambda: has)
    assert planned_memory(CONFIG, build_plan(CONFIG, 64), 2).status == status


def test_a_device_too_small_for_the_plan_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "choose_backend", lambda config: "nccl")
    monkeypatch.setattr(run, "rank_memory", lambda config, ranks: 2**20)
    told = planned_memory(CONFIG, build_plan(CONFIG, 64), 2)
    assert (told.status, told.remedy[:28]) == ("fail", "lower --micro-batch-size, ad")
