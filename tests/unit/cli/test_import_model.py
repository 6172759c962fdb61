"""`import`: what it prints can be typed next."""

from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.export.hugging_face import export_hugging_face
from tests.unit.export.trained import save_model, small_config


def test_it_says_what_came_in_and_how_to_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    root = tmp_path / "in"
    assert main(["import", "--from", str(tmp_path / "hf"), "--save-dir", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"target  {root}/step-00000000: " in out
    assert "4 layers x 48, widths 192, 160, 96, 64" in out
    assert f"megatron-tlm train --config {root}/config.yaml --load {root} --finetune" in out
    assert main(["inspect", str(root)]) == 0


def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--from", str(tmp_path), "--save-dir", str(tmp_path / "in")]) == 2
    err = capsys.readouterr().err
    assert "config.json cannot be read" in err
    assert err.count("\n") == 1
