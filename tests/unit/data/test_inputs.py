"""Which files an input names, and standard input."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from megatron_tlm.data.documents import read_chunks
from megatron_tlm.data.inputs import Source, expand_inputs, open_source
from megatron_tlm.errors import DataError


def test_globs_are_sorted_and_every_file_comes_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "c.txt", "notes.md"):
        (tmp_path / name).touch()
    found = expand_inputs([str(tmp_path / "c.txt"), str(tmp_path / "*.jsonl*"), str(tmp_path / "b.jsonl")])
    assert [source.path.name for source in found] == ["c.txt", "a.jsonl.gz", "b.jsonl"]


def test_files_named_again_are_told_and_read_once(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    a, told = str(tmp_path / "a.txt"), list[str]()
    assert [source.path.name for source in expand_inputs([a, str(tmp_path / "b.txt")], told.append)] == [
        "a.txt",
        "b.txt",
    ]
    assert not told
    assert len(expand_inputs([a, a], told.append)) == 1
    assert len(expand_inputs([str(tmp_path), str(tmp_path / "*.txt")], told.append)) == 2
    assert told == [
        f"input: {a} named more than once, read once",
        f"input: {a} and 1 more named more than once, read once",
    ]


def test_a_file_of_two_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    (source,) = expand_inputs(
        ["a.txt", str(tmp_path / "a.txt"), "./link.txt", f"../{tmp_path.name}/*.txt"], told.append
    )
    assert source.path == Path("a.txt")
    assert told == ["input: a.txt named more than once, read once"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none.jsonl", "input = .*none.jsonl' matches no file of text"),
        ("*.csv", "input = .*csv' matches no file of text"),
        ("notes.md", r"notes\.md' is not one of \.jsonl, \.json, \.txt"),
        ("corpus.gz", r"corpus\.gz' is not one of"),
    ],
)
def test_inputs_that_cannot_be_meant(tmp_path: Path, pattern: str, message: str) -> None:
    for name in ("notes.md", "corpus.gz"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        expand_inputs([str(tmp_path / pattern)])


def test_a_folder_stands_for_the_text_below_it(tmp_path: Path) -> None:
    for name in ("b/2.jsonl.zst", "b/1.parquet", "a.txt.gz", "notes.md", ".hidden/c.jsonl", ".a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = expand_inputs([str(tmp_path)])
    assert found == (
        Source(tmp_path / "a.txt.gz", "text", ".gz"),
        Source(tmp_path / "b/1.parquet", "parquet"),
        Source(tmp_path / "b/2.jsonl.zst", "lines", ".zst"),
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty' matches no file of text"):
        expand_inputs([str(tmp_path / "empty")])


class Standard:
    """A stand-in for sys.stdin."""

    def __init__(self, raw: bytes) -> None:
        self.buffer = io.BufferedReader(io.BytesIO(raw))  # type: ignore[arg-type]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_lines_packed_or_not(monkeypatch: pytest.MonkeyPatch, pack: type[bytes]) -> None:
    monkeypatch.setattr("sys.stdin", Standard(pack(b'{"text": "a"}\n{"text": "b"}\n')))
    (source,) = expand_inputs(["-"])
    assert str(source) == "standard input"
    assert source.size_bytes == 0
    documents = [document for chunk in read_chunks([source]) for document in chunk.documents(["text"])]
    assert documents == [{"text": ("a",)}, {"text": ("b",)}]


def test_an_empty_standard_input_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Standard(b""))
    with open_source(Source(Path("-"), "lines")) as (file, raw):
        assert (file.read(), raw) == (b"", None)


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in (("a.jsonl.zst", "zstandard"), ("a.parquet", "pyarrow")):
        (tmp_path / name).write_bytes(b"x")
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=rf"needs the package {package}, .*; pip install {package}"):
            list(read_chunks(expand_inputs([str(tmp_path / name)])))
