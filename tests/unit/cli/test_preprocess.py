"""`megatron-tlm preprocess`, and the same under the name of Megatron's tool."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_tlm.cli import preprocess, tokenizer
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.errors import ConfigError, DataError

TOOL = Path(__file__).parents[3] / "tools" / "preprocess_data.py"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": f"Document {number}\nhas two lines."}) for number in range(50)]
    path.write_text("\n".join(lines))
    return path


def test_a_megatron_users_command_line_works(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        tokenizer.main(["train", "--input", str(corpus), "--model-prefix", f"{tmp_path}/tok", "--vocab-size=300"]) == 0
    )
    assert capsys.readouterr().out == f"{tmp_path}/tok.model\n"
    command = ["--input", str(corpus), "--json-keys", "text", "--output-prefix", f"{tmp_path}/out", "--workers", "2"]
    command += ["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", f"{tmp_path}/tok.model"]
    command += ["--append-eod", "--keep-newlines", "--log-interval", "10", "--dataset-impl", "mmap"]
    before = signal.getsignal(signal.SIGTERM)
    assert preprocess.main(command) == 0
    assert signal.getsignal(signal.SIGTERM) == before
    told = capsys.readouterr()
    assert "documents/s" in told.err
    assert told.out.startswith(f"wrote {tmp_path}/out_text_document.bin and .idx\n50 documents, ")
    assert len(IndexedDataset(tmp_path / "out_text_document")) == 50


def test_empty_documents_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": ""}\n')
    command = ["--input", f"{tmp_path}/a.jsonl", "--output-prefix", f"{tmp_path}/a", "--tokenizer-type"]
    assert preprocess.main([*command, "ByteTokenizer", "--workers", "1"]) == 0
    assert "2 documents, 1 of them empty, 1 tokens" in capsys.readouterr().out


def test_mistakes_are_errors(corpus: Path, tmp_path: Path) -> None:
    command = ["--input", str(corpus), "--output-prefix", f"{tmp_path}/out"]
    with pytest.raises(DataError, match="names no tokenizer"):
        preprocess.main(command)
    with pytest.raises(ConfigError, match=r"--append-eot is not a flag .* --append-eod"):
        preprocess.main([*command, "--append-eot"])
    with pytest.raises(
        ConfigError, match=r"\(1\) --vocab-file v is not offered: .* --tokenizer-model .* \(2\) --merge-"
    ):
        preprocess.main([*command, "--vocab-file", "v", "--merge-file", "m"])
    with pytest.raises(ConfigError, match=r"GPT2BPETokenizer is not read here; give --tokenizer-type HuggingFaceTok"):
        preprocess.main([*command, "--tokenizer-type", "GPT2BPETokenizer"])
    for size, found in (("nan", "'nan' is not a finite"), ("inf", "'inf' is not a finite"), ("0", "0 is below 1e-06")):
        with pytest.raises(ConfigError, match=f"--max-line-mb = {found}"):
            preprocess.main([*command, "--max-line-mb", size])
    with pytest.raises(DataError, match="tokenizer_type = HuggingFaceTokenizer needs a file"):
        preprocess.main([*command, "--tokenizer-type", "PretrainedFromHF"])
    with pytest.raises(ConfigError, match="tokenizer takes an action"):
        tokenizer.main([])
    with pytest.raises(ConfigError, match=r"tokenizer trian is not an action.*train"):
        tokenizer.main(["trian"])


def test_the_tool_runs_from_anywhere(corpus: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--input", "*.jsonl", "--output-prefix", "out", "--tokenizer-type"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*command, "ByteTokenizer", "--workers", "2"], cwd=tmp_path, env=environment, check=True)
    assert len(IndexedDataset(tmp_path / "out_text_document")) == 50
    failed = subprocess.run(
        [*command, "BiteTokenizer"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "did you mean ByteTokenizer?" in failed.stderr


def test_a_terminated_run_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, str(TOOL), "--input", str(tmp_path / "long.jsonl"), "--output-prefix", str(out / "a")]
    with (tmp_path / "long.jsonl").open("w") as file:
        for _ in range(60):
            file.write(json.dumps({"text": "many words " * 100_000}) + "\n")
    process = subprocess.Popen([*command, "--tokenizer-type", "ByteTokenizer", "--workers", "2"])
    partial = out / ".a.preprocess" / "0.tokens"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert os.listdir(out) == []
