"""Text files to documents: which files, which lines, and what is wrong with a bad one."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.data.documents import TextUnit, read_chunks
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.data.lines import BYTE_ORDER_MARK, BadLine
from megatron_tlm.errors import DataError


def read(
    *paths: Path, keys: tuple[str, ...] = ("text",), chunk_bytes: int = 1 << 18, text_unit: TextUnit = "file"
) -> list[dict[str, object]]:
    sources = expand_inputs([str(path) for path in paths])
    chunks = read_chunks(sources, chunk_bytes, keys=keys, text_unit=text_unit)
    return [document for chunk in chunks for document in chunk.documents(keys)]


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
    chunks = list(read_chunks(expand_inputs([str(path) for path in paths]), 1000))
    assert len(chunks) > 10
    assert sum(chunk.input_bytes for chunk in chunks) == sum(path.stat().st_size for path in paths)


def test_blank_lines_marks_and_missing_newlines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n  \r\n{"text": "b"}')
    assert read(path) == [{"text": ("a",)}, {"text": ("b",)}]


def test_a_text_file_is_one_document_unchanged_but_for_its_mark(tmp_path: Path) -> None:
    text = " one\r\n\n  two\ufeff\n"
    (tmp_path / "a.txt").write_bytes(BYTE_ORDER_MARK + text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "a.txt", tmp_path / "b.txt.gz") == [{"text": (text,)}] * 2


def test_the_line_number_is_that_of_the_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    good.write_bytes(b'{"text": "x"}\n' * 10)
    bad.write_bytes(b'{"text": "x"}\n' * 41 + b"\n{}\n")
    for chunk_bytes in (1, 100, 1 << 18):
        with pytest.raises(DataError, match=r"b\.jsonl:43 = '{}' has no key"):
            read(good, bad, chunk_bytes=chunk_bytes)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(b'{"text": "x"}\n' * 1000)
    for damaged in (whole[:-20], b"plain text", whole[:20] + b"\x00\xff" * 8 + whole[36:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.jsonl\.gz:\d+ is where the file stops being whole gzip"):
            read(path)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt = byte 0xef at offset 2 is not UTF-8"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1 << 18])
def test_paragraphs_stand_between_blank_lines(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\none\n two\n \t\nthree\r\n\r\n\n\nfour\n\n")
    expected = [{"text": ("one\n two",)}, {"text": ("three",)}, {"text": ("four",)}]
    assert read(path, chunk_bytes=chunk_bytes, text_unit="paragraph") == expected


def test_a_bad_paragraph_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\n\nthr\xff\n")
    with pytest.raises(DataError, match=r"a\.txt:5 = byte 0xff at offset 3 is not UTF-8"):
        read(tmp_path / "a.txt", text_unit="paragraph")


@pytest.mark.parametrize("chunk_bytes", [1, 10, 1000])
def test_a_line_too_long_is_passed_over_and_told(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "a.jsonl"
    long = b'{"text": "%s"}' % (b"x" * 100)
    exact = b'{"text": "%s"}' % (b"y" * 38)
    assert len(exact) == 50
    path.write_bytes(b"\n".join([b'{"text": "a"}', long, exact, b'{"text": "b"}', long]))
    told = []
    for chunk in read_chunks(expand_inputs([str(path)]), chunk_bytes, max_line_bytes=50):
        for entry in chunk.entries(["text"]):
            told.append(entry.reason if isinstance(entry, BadLine) else entry["text"][0][:1])
    why = "= 112 bytes exceed the 50 of a line; raise --max-line-mb, or mend the line"
    assert told == ["a", f"{path}:2 {why}", "y", "b", f"{path}:5 {why}"]


def test_a_text_file_too_long_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    (chunk,) = read_chunks(expand_inputs([str(tmp_path / "a.txt")]), max_line_bytes=99)
    with pytest.raises(DataError, match=r"a\.txt:1 = 100 bytes exceed the 99"):
        list(chunk.documents(["text"]))
    (tmp_path / "b.txt").write_bytes(b"x\n" * 100)
    with pytest.raises(DataError, match=r"b\.txt has 200 bytes without a blank line, above 99"):
        list(read_chunks(expand_inputs([str(tmp_path / "b.txt")]), text_unit="paragraph", max_line_bytes=99))


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    texts = [f"text {number} \u00e4\n" for number in range(600)]
    parquet.write_table(pyarrow.table({"n": list(range(600)), "text": texts}), path)
    assert read(path) == [{"text": (text,)} for text in texts]
    chunks = list(read_chunks(expand_inputs([str(path)])))
    assert sum(chunk.input_bytes for chunk in chunks) == path.stat().st_size
    with pytest.raises(DataError, match=r"a\.parquet has no column 'body' among n, text"):
        read(path, keys=("body",))
    parquet.write_table(pyarrow.table({"text": ["a", None, b"c".hex()]}), path)
    with pytest.raises(DataError, match=r"a\.parquet:2 = '{\"text\": null}' holds NoneType as 'text\'"):
        read(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.parquet is no whole Parquet file"):
        read(path)


def test_zstandard_is_read_frame_after_frame(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.jsonl.zst"
    raw = b'{"text": "x"}\n' * 5000
    packed = zstandard.compress(raw) + zstandard.compress(raw)
    path.write_bytes(packed)
    assert len(read(path)) == 10000
    for damaged in (packed[:-5], b"plain text", packed[: len(packed) // 2 + 3]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.jsonl\.zst:\d+ is where the file stops being whole zstandard"):
            read(path)
