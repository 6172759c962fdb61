"""Text files to documents: which files, which lines, and what is wrong with a bad one."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.data.documents import expand_inputs, parse_line, read_chunks
from megatron_tlm.errors import DataError

ADDRESS = "corpus.jsonl:7"


def read(*paths: Path, keys: tuple[str, ...] = ("text",), chunk_bytes: int = 1 << 18) -> list[dict[str, object]]:
    return [document for chunk in read_chunks(paths, chunk_bytes) for document in chunk.documents(keys)]


def test_globs_are_sorted_and_every_file_comes_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "c.txt", "notes.md"):
        (tmp_path / name).touch()
    found = expand_inputs([str(tmp_path / "c.txt"), str(tmp_path / "*.jsonl*"), str(tmp_path / "b.jsonl")])
    assert [path.name for path in found] == ["c.txt", "a.jsonl.gz", "b.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none.jsonl", "input = .*none.jsonl' matches no file"),
        ("*.csv", "input = .*csv' matches no file"),
        (".", "matches no file"),
        ("notes.md", r"notes\.md' is not one of \.jsonl, \.json, \.txt"),
        ("corpus.gz", r"corpus\.gz' is not one of"),
    ],
)
def test_inputs_that_cannot_be_meant(tmp_path: Path, pattern: str, message: str) -> None:
    for name in ("notes.md", "corpus.gz"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        expand_inputs([str(tmp_path / pattern)])


@given(st.lists(st.text(max_size=20), max_size=12), st.integers(1, 100))
def test_chunks_hold_all_lines_in_order(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (folder / "a.jsonl").write_bytes(raw)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(raw))
    expected = [{"text": (text,)} for text in texts] * 2
    assert read(folder / "a.jsonl", folder / "b.jsonl.gz", chunk_bytes=chunk_bytes) == expected


def test_progress_counts_the_bytes_on_disk(tmp_path: Path) -> None:
    paths = (tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz")
    raw = b'{"text": "x"}\n' * 5000
    paths[0].write_bytes(raw)
    paths[1].write_bytes(gzip.compress(raw))
    chunks = list(read_chunks(paths, 1000))
    assert len(chunks) > 10
    assert sum(chunk.input_bytes for chunk in chunks) == sum(path.stat().st_size for path in paths)


def test_blank_lines_marks_and_missing_newlines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n  \r\n{"text": "b"}')
    assert read(path) == [{"text": ("a",)}, {"text": ("b",)}]


def test_a_text_file_is_one_document_unchanged(tmp_path: Path) -> None:
    text = "\ufeff one\r\n\n  two\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "a.txt", tmp_path / "b.txt.gz") == [{"text": (text,)}] * 2


def test_several_keys_and_lists_of_texts() -> None:
    line = json.dumps({"text": ["one", "two"], "title": "three", "n": 4}).encode()
    assert parse_line(line, ("title", "text"), ADDRESS) == {"title": ("three",), "text": ("one", "two")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', r"is no JSON \(Expecting ',' delimiter"),
        (b"{" * 9 + b"x" * 100, r"= '\{{9}x{48}\.\.\.' is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'["a"]', r"""= '\["a"\]' is no JSON object; write \{"text": \.\.\.\}"""),
        (b'{"id": 1, "body": "a"}', r"= no key 'text' among its keys \('id', 'body'\); choose with --json-keys"),
        (b"{}", r"= no key 'text' among its keys \(none\)"),
        (b'{"text": 5}', "= 'text' holds int, not text"),
        (b'{"text": null}', "= 'text' holds NoneType, not text"),
        (b'{"text": ["a", 5]}', "= 'text' holds int, not text"),
        (b'{"text": "\xff"}', r"= byte 0xff at offset 10 is not UTF-8"),
        (b'{"text": "ab\\ud83d"}', r"= lone surrogate U\+D83D at character 2"),
    ],
)
def test_a_bad_line_is_told_with_its_address(line: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"(?s)^{ADDRESS} .*{message}"):
        parse_line(line, ("text",), ADDRESS)


def test_the_line_number_is_that_of_the_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    good.write_bytes(b'{"text": "x"}\n' * 10)
    bad.write_bytes(b'{"text": "x"}\n' * 41 + b"\n{}\n")
    for chunk_bytes in (1, 100, 1 << 18):
        with pytest.raises(DataError, match=r"b\.jsonl:43 = no key"):
            read(good, bad, chunk_bytes=chunk_bytes)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(b'{"text": "x"}\n' * 1000)
    for damaged in (whole[:-20], b"plain text", whole[:20] + b"\x00\xff" * 8 + whole[36:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.jsonl\.gz:\d+ = no whole gzip file"):
            read(path)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt = byte 0xef at offset 2 is not UTF-8"):
        read(tmp_path / "a.txt")
