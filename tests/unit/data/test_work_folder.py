"""A run that ended early is continued: the same bytes as in one go, and no finished part done twice."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from megatron_tlm.data import documents, work_folder
from megatron_tlm.data.preprocess import Listener, Options, Result, preprocess
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import DataError
from tests.unit.data.text_by_text import TextByText

OUTPUTS = ("a_text_document.bin", "a_text_document.idx", "a_title_document.bin", "a_title_document.idx")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small corpus has some fifteen parts of some four chunks."""
    monkeypatch.setattr(documents.read_chunks, "__defaults__", (512,))
    monkeypatch.setattr(work_folder, "PART_BYTES", 2000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    chance = random.Random(0)
    records = [
        {"text": f"{number} " * chance.randrange(20), "title": f"title {number}"} if number % 50 else {"none": number}
        for number in range(400)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Counting(TextByText):
    """Counts what it encodes, and is killed after so many texts."""

    def __init__(self, deadly: int | None = None) -> None:
        self.encoded, self.deadly = 0, deadly

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        if self.encoded == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(text)


def run(
    source: Path, folder: Path, tokenizer: ByteTokenizer, told: list[str] | None = None, **options: object
) -> Result:
    settings = {"json_keys": ("text", "title"), "workers": 1, "on_bad_line": "quarantine"} | options
    listener = Listener(tell=(told if told is not None else []).append)
    return preprocess([str(source)], str(folder / "a"), tokenizer, Options(**settings), listener)  # type: ignore[arg-type]


def run_and_die(source: Path, folder: Path, deadly: int, **options: object) -> None:
    child = os.fork()
    if child == 0:
        try:
            run(source, folder, Counting(deadly), **options)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(source: Path, tmp_path: Path) -> dict[str, bytes]:
    run(source, tmp_path / "whole", ByteTokenizer())
    found = contents(tmp_path / "whole")
    assert sorted(found) == sorted((*OUTPUTS, "a_bad_lines.jsonl"))
    return found


@pytest.mark.parametrize("deadly", [1, 100, 333, 500, 783])
def test_a_killed_run_is_continued(source: Path, tmp_path: Path, whole: dict[str, bytes], deadly: int) -> None:
    folder = tmp_path / "killed"
    run_and_die(source, folder, deadly)
    assert os.listdir(folder) == [".a.preprocess"]
    tokenizer, told = Counting(), list[str]()
    result = run(source, folder, tokenizer, told)
    assert contents(folder) == whole
    assert 784 - deadly < tokenizer.encoded <= 784 - max(0, deadly - 250)
    assert (result.counts.documents, result.counts.bad_lines) == (392, {"missing key": 8})
    assert (deadly < 250) or "are kept in" in told[0]


def test_it_may_be_killed_again_and_again_and_change_its_workers(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "killed"
    for _ in range(2):
        run_and_die(source, folder, 300)
    run(source, folder, ByteTokenizer(), workers=3)
    assert contents(folder) == whole


def test_a_mended_line_does_not_undo_what_came_before_it(source: Path, tmp_path: Path) -> None:
    lines = source.read_text().replace('{"none": 0}', '{"text": "0", "title": "0"}').splitlines(keepends=True)
    good = [line for line in lines if "none" not in line]
    source.write_text("".join([*good[:300], '{"text": "cut\n', *good[300:]]))
    folder, told = tmp_path / "out", list[str]()
    with pytest.raises(DataError, match=r"corpus\.jsonl:301 = .* is no JSON"):
        run(source, folder, Counting(), told, on_bad_line="stop")
    assert told == [f"finished parts are kept in {folder}/.a.preprocess: the same command continues behind them"]
    source.write_text("".join(good))
    tokenizer = Counting()
    run(source, folder, tokenizer, on_bad_line="stop")
    assert tokenizer.encoded < 2 * 250
    run(source, tmp_path / "whole", ByteTokenizer(), on_bad_line="stop")
    assert contents(folder) == contents(tmp_path / "whole")


def test_changed_text_undoes_its_part_and_those_behind(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run_and_die(source, folder, 600)
    text = source.read_text()
    source.write_text(text.replace('"title 120"', '"TITLE 120"'))  # as long, and nothing of the file's date is asked
    tokenizer = Counting()
    run(source, folder, tokenizer)
    assert 784 - 240 < tokenizer.encoded < 784
    run(source, tmp_path / "whole", ByteTokenizer())
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["0.tokens", "1.lengths", "0.borders", "quarantine", "journal"])
def test_damaged_work_is_done_again(source: Path, tmp_path: Path, whole: dict[str, bytes], name: str) -> None:
    folder = tmp_path / "out"
    run_and_die(source, folder, 600)
    path = folder / ".a.preprocess" / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)
    run(source, folder, ByteTokenizer())
    assert contents(folder) == whole


def test_other_settings_are_refused_until_told(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run_and_die(source, folder, 600)
    with pytest.raises(DataError, match=r"documents of a run with another append_eod; .*--restart"):
        run(source, folder, ByteTokenizer(), append_eod=True)
    with pytest.raises(DataError, match=r"documents of a run with another on_bad_line; "):
        run(source, folder, ByteTokenizer(), on_bad_line="skip")
    tokenizer = Counting()
    run(source, folder, tokenizer, append_eod=True, restart=True)
    assert tokenizer.encoded == 784


def test_two_runs_of_one_prefix_are_refused(source: Path, tmp_path: Path) -> None:
    class Nested(TextByText):
        def encode(self, text: str) -> list[int]:
            with pytest.raises(DataError, match=r"\.a\.preprocess is held by another run"):
                run(source, tmp_path / "out", ByteTokenizer())
            return super().encode(text)

    source.write_text(json.dumps({"text": "a", "title": "b"}))
    run(source, tmp_path / "out", Nested())
    assert sorted(contents(tmp_path / "out")) == sorted(OUTPUTS)


class Standard:
    """A stand-in for sys.stdin."""

    def __init__(self, path: Path) -> None:
        self.buffer = path.open("rb")


def test_standard_input_is_continued_where_it_is_given_again(
    source: Path, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Standard(source))
    run_and_die(Path("-"), tmp_path / "out", 600)
    other = tmp_path / "other.jsonl"
    other.write_text(source.read_text().replace("title 3", "TITLE 3"))
    monkeypatch.setattr("sys.stdin", Standard(other))
    with pytest.raises(DataError, match=r"standard input is other text than the \d+ documents kept in .*--restart"):
        run(Path("-"), tmp_path / "out", ByteTokenizer())
    monkeypatch.setattr("sys.stdin", Standard(source))
    tokenizer = Counting()
    run(Path("-"), tmp_path / "out", tokenizer)
    assert tokenizer.encoded < 500
    found = contents(tmp_path / "out")
    assert {name: found[name] for name in OUTPUTS} == {name: whole[name] for name in OUTPUTS}
