"""`convert` under Megatron's flags: what it prints, proves, ignores aloud and refuses."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megatron_tlm.checkpoint import relayout
from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.cli.main import main
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import facts, flip, model_shape, save, values

ONE = ["--target-tensor-parallel-size", "1", "--target-pipeline-parallel-size", "1"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10):
        save(
            tmp_path / "a", values(model_shape()), facts(model_shape(), step=step, grid=Grid(tensor=2, pipe=2)), parts=4
        )
    return tmp_path / "a"


def convert(run: Path, *flags: str) -> int:
    return main(["convert", "--load-dir", str(run), "--save-dir", str(run.parent / "b"), *flags])


def test_it_says_what_came_of_what_and_proves_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(run, *ONE) == 0
    out, err = capsys.readouterr()
    assert re.search(r"source .*a/step-00000010: tensor 2 x pipeline 2 x data 1, 4 parts, [\d.]+ [KM]iB", out)
    assert re.search(r"target .*b/step-00000010: tensor 1 x pipeline 1 x data 1, 1 part, [\d.]+ [KM]iB", out)
    assert re.search(r"120 tensors in \d+\.\d s, [\d.]+ [KM]iB/s", out)
    assert "all 120 tensors have the source's hashes" in out
    assert err == ""


def test_step_and_degrees_are_as_asked_and_the_rest_as_saved(run: Path) -> None:
    assert convert(run, "--ckpt-step", "5", "--target-data-parallel-size", "2", "--no-verify") == 0
    with Reader(find(run.parent / "b")) as reader:
        assert reader.manifest.facts.step == 5
        assert reader.manifest.facts.grid == Grid(tensor=2, pipe=2, data=2)


def test_as_many_files_are_written_at_a_time_as_asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int | None = None) -> None:
            asked.append(max_workers)
            super().__init__(max_workers)

    monkeypatch.setattr(relayout, "ThreadPoolExecutor", Pool)
    assert convert(run, "--workers", "3", "--no-verify") == 0
    assert asked == [3]


def test_without_proof_it_says_how_to_get_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(run, *ONE, "--no-verify") == 0
    assert "not verified; --verify reads both again" in capsys.readouterr().out


def test_flags_of_megatron_s_converter_are_ignored_aloud(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        convert(run, *ONE, "--model-type", "GPT", "--loader", "mcore", "--saver", "core", "--max-queue-size", "9") == 0
    )
    err = capsys.readouterr().err
    for flag in ("--model-type GPT", "--loader mcore", "--saver core", "--max-queue-size 9"):
        assert f"note: {flag} has no effect, there is one checkpoint format" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--loader", "llama_mistral"], r"--loader = llama_mistral asks for another format or model"),
        (["--model-type", "BERT"], r"--model-type = BERT asks for another format or model"),
        (["--ckpt-step", "7"], r"ckpt_step = 7 is not in .*a; it has 5, 10"),
        (["--logical", "--target-data-parallel-size", "2"], r"data-parallel-size = 2 but --logical means 1"),
        (["--target-zero-stage", "3"], r"zero-stage = 3 but with 2 pipeline stages DeepSpeed has ZeRO 0 and 1 alone"),
        (["--target-zero-stage", "4"], r"--target-zero-stage: invalid choice: 4"),
        (["--workers", "0"], r"--workers = 0 is below 1; give 1 or more"),
        (["--target-tensor-parallel-size", "3"], r"does not divide .* layer 1 width 16.* use one of \[1, 2, 4\]"),
        (["--target-pipeline-parallel-size", "0"], r"--target-pipeline-parallel-size = 0 is below 1; give 1 or more"),
        (["--target-tensor-parallel-degree", "2"], r"did you mean --target-tensor-parallel-size"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert convert(run, *flags) == 2
    err = capsys.readouterr().err
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert not (run.parent / "b").exists()


def test_a_directory_passed_over_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "step-00000010" / "part-00003.safetensors").unlink()
    assert convert(run, *ONE) == 0
    assert "note: passed over step-00000010: " in capsys.readouterr().err
    assert find(run.parent / "b").name == "step-00000005"


def test_a_damaged_step_is_passed_over_and_never_given_new_hashes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(run / "step-00000010" / "part-00003.safetensors")
    assert convert(run, *ONE, "--ckpt-step", "10", "--no-verify") == 2
    assert "damaged since" in capsys.readouterr().err
    assert not (run.parent / "b").exists()
    assert convert(run, *ONE, "--no-verify") == 0
    assert re.search("note: passed over step-00000010: .* damaged since", capsys.readouterr().err)
    assert find(run.parent / "b").name == "step-00000005"


@pytest.mark.parametrize("flag", ["--save-dir", "--load-dir"])
def test_a_folder_without_a_name_is_refused(
    run: Path, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    assert convert(run.parent / "a", *ONE, flag, "") == 2
    assert f"{flag} = '' but a folder is needed" in capsys.readouterr().err


def test_the_logical_form_is_one_part_of_whole_tensors(run: Path) -> None:
    assert convert(run, "--logical", "--target-zero-stage", "0") == 0
    with Reader(find(run.parent / "b")) as reader:
        assert (reader.manifest.facts.grid, reader.manifest.facts.zero_stage) == (Grid(), 0)
        assert reader.manifest.parts == ("part-00000.safetensors",)
        assert all(len(record.pieces) == 1 for record in reader.manifest.tensors.values())


def test_padding_is_offered_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = model_shape(widths=(24, 18))
    save(tmp_path / "a", values(shape), facts(shape))
    assert convert(tmp_path / "a", "--target-tensor-parallel-size", "4") == 2
    assert "layer 1 width 18; use one of [1, 2], or a width_multiple that 4 divides, or give --pad-widths" in (
        capsys.readouterr().err
    )
    assert convert(tmp_path / "a", "--target-tensor-parallel-size", "4", "--pad-widths") == 0
    out = capsys.readouterr().out
    # 2 neurons x 3 matrices x 8 = 48 numbers: 2 bytes of weight and 3 x 4 of state each
    assert "padded layer 1 18 -> 20: 2 neurons of zeros, 48 parameters, 672 B" in out
    assert "train on with --layer-widths 24 20" in out
    assert "have the source's hashes" in out
