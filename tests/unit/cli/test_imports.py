"""Which commands wait for torch: none to explain itself or to refuse a flag, and those that touch no tensor never."""

import subprocess
import sys
from pathlib import Path

from megatron_tlm.cli.main import COMMANDS

PROGRAM = """
import contextlib, io, sys
from megatron_tlm.cli.main import main

for line in sys.argv[1:]:
    words = line.split()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as ending:
            code = ending.code
    slow = {"torch", "deepspeed", "safetensors"} & set(sys.modules)
    assert not slow, f"{line}: {slow}"
    print(code, line)
"""


def codes(lines: list[str], folder: Path) -> list[int]:
    """How each command line ends in one process that must not import torch."""
    told = subprocess.run([sys.executable, "-c", PROGRAM, *lines], cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return [int(line.split()[0]) for line in told.stdout.splitlines()]


def test_no_command_waits_for_torch_to_explain_itself_or_to_refuse_a_flag(tmp_path: Path) -> None:
    assert codes([f"{name} --help" for name in COMMANDS], tmp_path) == [0] * len(COMMANDS)
    assert codes([f"{name} --no-such-flag" for name in COMMANDS], tmp_path) == [2] * len(COMMANDS)


def test_commands_that_touch_no_tensor_do_without_torch(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "forty bytes are not much to learn from.."}\n')
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
    lines = {
        "plan --preset tiny --pipeline-model-parallel-size 2": 0,
        "preprocess --input text.jsonl --output-prefix text --tokenizer-type ByteTokenizer": 0,
        "data verify text_text_document": 0,
        "report log": 0,
        "study status absent": 2,
        # What flags alone decide is refused before any rank imports it.
        "train --preset tiny --mock-data --global-batch-size 3 --micro-batch-size 2": 2,
    }
    assert codes(list(lines), tmp_path) == list(lines.values())
