"""`megatron-tlm data`: what it prints, and the files it makes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.data.pair_writer import IndexedDatasetWriter

TOOL = Path(__file__).resolve().parents[3] / "tools" / "merge_datasets.py"


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    with IndexedDatasetWriter(tmp_path / "in" / "a", np.dtype(np.uint16)) as writer:
        for text in ("hello", "", "hi", "bye", "again"):
            writer.add_document([*text.encode(), 256] if text else [])
    return str(tmp_path / "in" / "a")


def test_inspect_describes_a_pair(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", prefix]) == 0
    out = capsys.readouterr().out
    assert f"{prefix}: 5 documents, 19 tokens of uint16" in out
    assert "4; 1 documents have none" in out
    assert "shortest 3, mean 4.8, 50% 6, 90% 6, 99% 6, longest 6" in out
    assert "4-7           3 ##########" in out


def test_inspect_shows_any_document(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", prefix, "--document", "2", "--tokenizer-type", "ByteTokenizer"]) == 0
    assert capsys.readouterr().out == f"--- document 2 of {prefix}: 1 sequences, 3 tokens\nhi\n"
    assert main(["data", "inspect", prefix, "--document", "2"]) == 0
    assert capsys.readouterr().out.endswith("\n104 105 256\n")
    assert main(["data", "inspect", prefix, "--document", "5"]) == 2
    assert "document = 5 is outside 0..4" in capsys.readouterr().err


def test_verify_says_whole_or_why_not(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", prefix, "--tokenizer-type", "ByteTokenizer", "--expect-eod"]) == 0
    assert (
        "whole; 5 documents, 1 empty; 19 tokens, largest id 256, all below 257; .bin sha256" in capsys.readouterr().out
    )
    assert main(["data", "verify", prefix, "--vocab-size", "200"]) == 2
    assert "id 256 at token 5 is outside 0..199" in capsys.readouterr().err
    assert main(["data", "verify", prefix, "--expect-eod"]) == 2
    assert "--expect-eod needs to know the id" in capsys.readouterr().err


def test_verify_finds_documents_without_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with IndexedDatasetWriter(tmp_path / "b", np.dtype(np.uint16)) as writer:
        writer.add_document([1, 2])
    command = ["data", "verify", str(tmp_path / "b"), "--tokenizer-type", "ByteTokenizer", "--expect-eod"]
    assert main(command) == 2
    assert "1 of 1 documents do not end with id 256; preprocess with --append-eod" in capsys.readouterr().err


def test_split_and_merge_give_the_pair_back(prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "split", prefix, "--split", "50,50,0", "--output-prefix", str(tmp_path / "out" / "s")]) == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path}/out/s_train.bin and .idx: 3 documents" in out
    assert f"no {tmp_path}/out/s_test: no sequence falls to it" in out
    command = [sys.executable, str(TOOL), "--input", str(tmp_path / "out"), "--output-prefix", str(tmp_path / "whole")]
    subprocess.run(command, check=True, capture_output=True)
    for suffix in (".bin", ".idx"):
        assert Path(f"{tmp_path}/whole{suffix}").read_bytes() == Path(f"{prefix}{suffix}").read_bytes()
    assert main(["data", "split", prefix, "--shards", "2", "--output-prefix", str(tmp_path / "n")]) == 0
    assert (tmp_path / "n_00001.idx").exists()


def test_sample_shows_some_documents(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "sample", prefix, "--count", "9", "--tokens", "3", "--tokenizer-type", "ByteTokenizer"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("---")] == ["hel", "hi", "bye", "aga"]


def test_actions_are_listed_and_others_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    assert "inspect  what a pair holds" in capsys.readouterr().out
    assert main(["data", "verfy"]) == 2
    assert "data verfy is not an action; did you mean verify?" in capsys.readouterr().err


def test_tokenizer_inspect_tells_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "1  2"}\n{"text": "3"}\n')
    command = [
        "tokenizer",
        "inspect",
        "--tokenizer-type",
        "NullTokenizer",
        "--vocab-size",
        "9",
        "--text",
        "1 2",
        "3  4",
    ]
    assert main([*command, "--input", str(tmp_path / "a.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "NullTokenizer: 10 ids, stored as uint16, end-of-document id 9" in out
    assert "CHANGED at character 2: '3  4' became '3 4'" in out
    assert "not given back as they were: text 2" in out
    assert "1 of 2 texts of the input come back as they were, 1.67 bytes a token" in out
    assert main(["tokenizer", "inspect", "--tokenizer-type", "ByteTokenizer"]) == 0
    assert "every text comes back as it was" in capsys.readouterr().out


def test_tokenizer_inspect_needs_text_to_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    command = ["tokenizer", "inspect", "--tokenizer-type", "ByteTokenizer", "--input", str(tmp_path / "a.jsonl")]
    assert main(command) == 2
    assert "holds no text under text; give more" in capsys.readouterr().err
