"""Old checkpoints go, the last ones and the pointer's stay, damaged ones are left to a person."""

import shutil
from pathlib import Path

import pytest

from megatron_tlm.checkpoint import prune as prune_module
from megatron_tlm.checkpoint.load import find
from megatron_tlm.checkpoint.prune import prune, sweep
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.made import facts, model_shape, save, values

SHAPE = model_shape(widths=(8,))
TENSORS = values(SHAPE)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def saved(root: Path, *steps: int) -> None:
    for step in steps:
        save(root, TENSORS, facts(SHAPE, step=step))


def test_the_last_ones_stay(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    assert [path.name for path in prune(tmp_path, 2)] == ["step-00000002", "step-00000001"]
    assert names(tmp_path) == ["latest", "step-00000003", "step-00000004"]
    assert prune(tmp_path, 2) == ()


def test_last_is_by_saving_not_by_number(tmp_path: Path) -> None:
    saved(tmp_path, 1, 5, 9, 2)
    prune(tmp_path, 2)
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000009"]


def test_a_damaged_one_stays_and_does_not_count(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    (tmp_path / "step-00000003" / "part-00000.safetensors").unlink()
    assert [path.name for path in prune(tmp_path, 1)] == ["step-00000001"]
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000003"]


def test_what_the_pointer_names_stays(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    (tmp_path / "latest").write_text("step-00000001\n")
    prune(tmp_path, 1)
    assert names(tmp_path) == ["latest", "step-00000001", "step-00000003"]


def test_a_kill_while_deleting_leaves_rubbish_that_the_next_call_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(prune_module.shutil, "rmtree", lambda *_, **__: None)
        prune(tmp_path, 1)
    assert ".step-00000001.deleted" in names(tmp_path)
    assert find(tmp_path, tell=pytest.fail).name == "step-00000002"
    prune(tmp_path, 1)
    assert names(tmp_path) == ["latest", "step-00000002"]


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"keep_last = 0 would delete every checkpoint; give 1 or more"):
        prune(tmp_path, 0)


def test_a_lone_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    shutil.rmtree(tmp_path / "step-00000001" / "absent", ignore_errors=True)
    assert prune(tmp_path, 1) == ()


def test_milestones_stay_for_good(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10, 15, 20, 25)
    prune(tmp_path, 1, every=10)
    assert names(tmp_path) == ["latest", "step-00000010", "step-00000020", "step-00000025"]


def test_a_sweep_takes_what_kills_left_and_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for rubbish in (".step-00000003.partial", ".step-00000000.deleted", ".step-00000002.replaced"):
        (tmp_path / rubbish).mkdir()
    # A kill between two renames: this one is step 1 still.
    (tmp_path / "step-00000001").rename(tmp_path / ".step-00000001.replaced")
    sweep(tmp_path)
    assert names(tmp_path) == [".step-00000001.replaced", "latest", "step-00000002"]
    sweep(tmp_path / "absent")
