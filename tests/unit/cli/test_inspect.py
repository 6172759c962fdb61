"""`inspect`: the whole report, as text and as JSON, and exit codes that a script can use."""

import json
from pathlib import Path

import pytest

from megatron_tlm.cli.inspect import runs
from megatron_tlm.cli.main import main
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import facts, model_shape, save, values


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = values(model_shape())
    for step in (5, 10):
        made["head.norm.weight", "weight"][0] = step
        save(tmp_path / "a", made, facts(model_shape(), step=step, grid=Grid(pipe=2)))
    return tmp_path / "a"


def test_the_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run)]) == 0
    out, err = capsys.readouterr()
    for line in (
        f"checkpoint  {run}/step-00000010",
        "progress    step 10, 80 samples, 5,120 tokens",
        "model       attention, 2,376 parameters, 3 layers x 8, 4 heads of 2 (2 key/value), vocabulary 37",
        "widths      24, 16, 8, mean 16",
        "layout      tensor 1 x pipeline 2 x data 1 = 2 ranks, ZeRO 1",
        "stage 0     embedding .. layers.1.mixer, 4 units, 1,280 parameters",
        "weight      30 tensors, BF16, 4.64 KiB",
        "master      30 tensors, F32, 9.28 KiB",
        "note        no tokenizer",
        "complete    every file is there as it was written, by hash",
    ):
        assert line in out.splitlines(), out
    assert "            part-00001.safetensors  " in out
    assert err == ""


def test_the_tensors(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run / "step-00000005"), "--tensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(" F32 " in line or " BF16 " in line for line in lines) == 120
    assert any(line.split()[:4] == ["exp_avg/embedding.weight", "F32", "37x8", "1.16"] for line in lines)


def test_json_holds_all_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run), "--ckpt-step", "5", "--json", "--tensors"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["step"] == 5
    assert record["parameters"] == 2376
    assert record["layout"] == {"tensor": 1, "pipe": 2, "data": 1, "zero": 1}
    assert record["shape"]["widths"] == [24, 16, 8]
    assert record["complete"] is True
    assert record["tensors"]["weight/embedding.weight"] == {
        "dtype": "BF16",
        "shape": [37, 8],
        "files": ["part-00000.safetensors"],
    }


def test_what_is_missing_is_told_and_the_exit_code_is_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in run.glob("step-*/part-00001.safetensors"):
        part.unlink()
    assert main(["inspect", str(run)]) == 1
    out = capsys.readouterr().out
    assert "MISSING     " in out
    assert "part-00001.safetensors is missing but the manifest names it" in out
    assert "complete " not in out


def test_two_checkpoints_are_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run / "step-00000005"), "--diff", str(run)]) == 1
    out = capsys.readouterr().out
    assert "fact    step: 5 and 10" in out
    assert "tensor  weight/head.norm.weight: values, 1 of 8 elements, largest 5, relative 0.909" in out
    assert "119 of 120 tensors are equal" in out
    assert main(["inspect", str(run), "--diff", str(run)]) == 0
    assert "120 of 120 tensors are equal" in capsys.readouterr().out


def test_a_comparison_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run / "step-00000005"), "--diff", str(run), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert ["step", 5, 10] in record["facts"]
    assert record["compared"] == 120
    assert [item["name"] for item in record["tensors"]] == ["head.norm.weight"]


def test_a_folder_without_one_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "so there is no checkpoint" in capsys.readouterr().err


def test_equal_widths_are_told_once() -> None:
    assert runs((192, 160, 160, 96)) == "192, 160 x 2, 96"
