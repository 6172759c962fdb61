"""What a former run left is neither overwritten nor mixed with what a new one writes."""

from pathlib import Path

import pytest

from megatron_tlm.config.schema import CheckpointConfig
from megatron_tlm.errors import CheckpointError
from megatron_tlm.train.saving.former import check_save_folder, set_aside_events, set_aside_logs


@pytest.fixture
def used(tmp_path: Path) -> Path:
    for step in (3, 12):
        (tmp_path / "used" / f"step-{step:08d}").mkdir(parents=True)
    return tmp_path / "used"


def test_a_run_from_scratch_does_not_save_among_others(used: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint.save = .*used holds 2 checkpoints already, the newest of step 12, and this run "
        r"starts from scratch; add --load .*used to go on from there, or give --save another folder",
    ):
        check_save_folder(CheckpointConfig(save=str(used)), None)


def test_nor_does_one_that_starts_from_another_folder(used: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "step-00000007"
    for options in ({}, {"no_load_optim": True}):
        config = CheckpointConfig(save=str(used), load=str(other.parent), **options)
        with pytest.raises(
            CheckpointError, match=r"starts from .*step-00000007; add --load .*used .* in place of --load"
        ):
            check_save_folder(config, other)


def test_nor_does_fine_tuning_even_of_its_own(used: Path) -> None:
    config = CheckpointConfig(save=str(used), load=str(used), finetune=True)
    with pytest.raises(CheckpointError, match=r"fine-tunes from .* without --finetune, or give --save another"):
        check_save_folder(config, used / "step-00000012")


def test_a_run_that_goes_on_saves_where_it_did(used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_save_folder(CheckpointConfig(save="used", load=str(used)), used / "step-00000012")
    check_save_folder(CheckpointConfig(save="used", load="used", no_load_optim=True), used / "step-00000003")
    check_save_folder(CheckpointConfig(save=str(used), load="used/step-00000003"), Path("used/step-00000003"))


def test_a_new_folder_and_none_are_free(used: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for save in (None, "new", "absent"):
        config = CheckpointConfig(save=save and str(tmp_path / save), load=str(used), finetune=True)
        check_save_folder(config, used / "step-00000012")


def test_logs_are_numbered_together(tmp_path: Path) -> None:
    names = ("metrics.jsonl", "config.yaml", "loss.png")
    assert set_aside_logs(tmp_path, names) is None
    for run in ("first", "second"):
        (tmp_path / "metrics.jsonl").write_text(run)
        (tmp_path / "config.yaml").write_text(run)
        told = set_aside_logs(tmp_path, names)
    assert told == f"{tmp_path / 'metrics.jsonl'} of a former run is now metrics.2.jsonl"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "metrics.1.jsonl": "first",
        "config.1.yaml": "first",
        "metrics.2.jsonl": "second",
        "config.2.yaml": "second",
    }


def test_a_log_without_a_line_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert set_aside_logs(tmp_path, ("metrics.jsonl",)) is None


def test_event_files_become_a_run_of_their_own(tmp_path: Path) -> None:
    set_aside_events(tmp_path, "inner")
    for run in (1, 2):
        (tmp_path / "inner").mkdir(exist_ok=True)
        for place in (tmp_path, tmp_path / "inner"):
            (place / f"events.out.tfevents.{run}").write_text("")
        set_aside_events(tmp_path, "inner")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("events.*"))
    assert found == [
        "former-1/events.out.tfevents.1",
        "former-1/inner/events.out.tfevents.1",
        "former-2/events.out.tfevents.2",
        "former-2/inner/events.out.tfevents.2",
    ]
