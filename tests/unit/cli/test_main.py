"""The front door: help without waiting, mistakes in one line, one voice among many ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_tlm import __version__
from megatron_tlm.cli.main import COMMANDS, main


def test_help_names_every_command_and_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        assert all(f"  {name} " in text for name in COMMANDS)
        assert "torchrun --standalone" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"megatron-tlm {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main([command, "--help"])
    assert ending.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: megatron-tlm {command}" in text
    assert "examples:" in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "trian is not a command; did you mean train?"),
        (["xyz"], f"xyz is not a command; there are {', '.join(COMMANDS)}"),
        (["plan", "--preset", "tini"], "--preset = tini is not shipped; did you mean tiny?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"megatron-tlm: error: {line}\n"


def test_bytes_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "caf\udce9.yaml"]) == 2
    assert r"argument 3 = 'caf\udce9.yaml' is no UTF-8 text; write it in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "rank"), [("RANK", "3"), ("LOCAL_RANK", "1")])
def test_other_ranks_fail_in_silence(
    variable: str, rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv(variable, rank)
    assert main(["plan"]) == 2
    assert capsys.readouterr().err == ""


def test_torchrun_is_told_by_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "attempt" / "error.json"
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert main(["trian"]) == 2
    assert json.loads(file.read_text())["message"]["message"] == "trian is not a command; did you mean train?"


@pytest.mark.parametrize("words", [["--help"], ["plan", "--preset", "tiny", "--json"], ["train", "--help"]])
def test_no_torch_is_imported_to_plan_or_to_explain(words: list[str]) -> None:
    program = f"""
import sys
from megatron_tlm.cli.main import main
try:
    code = main({words!r})
except SystemExit as ending:
    code = ending.code
slow = {{"torch", "deepspeed", "safetensors", "tqdm"}} & set(sys.modules)
assert not slow, slow
sys.exit(code)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_module_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "megatron_tlm", "plan", "--num-layers", "2"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("megatron-tlm: error: model.hidden_size, model.num_attention_heads")
    assert result.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_mistake() -> None:
    command = f"{sys.executable} -m megatron_tlm plan --preset 3b | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in ((None, "passive"), ("active", "active")):
        # Set first, so that monkeypatch knows what to put back.
        monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
        if given is None:
            monkeypatch.delenv("OMP_WAIT_POLICY")
        assert main(["plan", "--preset", "tiny"]) == 0
        assert os.environ["OMP_WAIT_POLICY"] == wanted
