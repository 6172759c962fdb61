"""What is said of a checkpoint follows from its manifest and its files' lengths, damaged ones included."""

from pathlib import Path

import pytest

from megatron_tlm.checkpoint.describe import describe
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import facts, flip, model_shape, save, values


def test_sizes_and_counts_are_those_of_the_tensors(tmp_path: Path) -> None:
    made = values(model_shape())
    save(tmp_path, made, facts(model_shape(), grid=Grid(pipe=2)), parts=2)
    found = describe(tmp_path, tell=pytest.fail)
    weights = [tensor for (_, role), tensor in made.items() if role == "weight"]
    assert found.parameters == sum(tensor.numel() for tensor in weights)
    assert [item.role for item in found.roles] == ["weight", "exp_avg", "exp_avg_sq", "master"]
    assert found.roles[0].dtypes == ("BF16",)
    assert [item.tensors for item in found.roles] == [len(weights)] * 4
    assert sum(item.size_bytes for item in found.roles) == sum(tensor.nbytes for tensor in made.values())
    assert found.faults == found.absent == ()
    assert found.notes == ("no tokenizer",)
    assert found.to_json()["complete"]


def test_weights_alone_are_told_what_they_cannot_do(tmp_path: Path) -> None:
    made = {key: tensor for key, tensor in values(model_shape()).items() if key[1] == "weight"}
    save(tmp_path, made, facts(model_shape()))
    notes = describe(tmp_path, tell=pytest.fail).notes
    assert notes[0].startswith("no optimizer state")
    assert notes[1].startswith("no float32 masters")


def test_a_state_that_one_parameter_lacks_is_named(tmp_path: Path) -> None:
    made = values(model_shape())
    del made["layers.1.mlp.up.weight", "exp_avg"]
    save(tmp_path, made, facts(model_shape()))
    found = describe(tmp_path, tell=pytest.fail)
    assert found.absent == (("layers.1.mlp.up.weight", "exp_avg"),)
    assert not found.to_json()["complete"]


def test_of_a_damaged_one_every_fault_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, values(model_shape()), facts(model_shape()), parts=3)
    (path / "part-00000.safetensors").unlink()
    with open(path / "part-00002.safetensors", "r+b") as file:
        file.truncate(100)
    found = describe(tmp_path, tell=lambda _: None)
    assert found.path == path
    assert [Path(fault.split(" ")[0]).name for fault in found.faults] == [
        "part-00000.safetensors",
        "part-00002.safetensors",
    ]


def test_a_whole_one_is_preferred_to_a_newer_damaged_one(tmp_path: Path) -> None:
    save(tmp_path, values(model_shape()), facts(model_shape(), step=5))
    newer = save(tmp_path, values(model_shape()), facts(model_shape(), step=6))
    (newer / "part-00001.safetensors").unlink()
    told: list[str] = []
    assert describe(tmp_path, tell=told.append).path.name == "step-00000005"
    assert "passed over step-00000006" in told[0]
    assert describe(tmp_path, 6, tell=pytest.fail).path == newer


def test_damage_inside_a_file_is_a_fault_unless_only_lengths_are_looked_at(tmp_path: Path) -> None:
    path = save(tmp_path, values(model_shape()), facts(model_shape()))
    flip(path / "part-00001.safetensors")
    found = describe(tmp_path, tell=lambda _: None)
    assert found.hashed
    assert len(found.faults) == 1
    assert "part-00001.safetensors: sha256 = " in found.faults[0]
    assert not found.to_json()["complete"]
    assert describe(tmp_path, tell=pytest.fail, hashes=False).faults == ()


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="so there is no checkpoint"):
        describe(tmp_path, tell=pytest.fail)
