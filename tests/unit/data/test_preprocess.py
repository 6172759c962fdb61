"""Text to a pair: Megatron's bytes, whatever the number of workers; nothing where something was wrong."""

import gzip
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data import documents
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.preprocess import Listener, Options, Result, preprocess
from megatron_tlm.data.progress import Counts, Progress
from megatron_tlm.data.tokenizers import ByteTokenizer, NullTokenizer, SentencePieceTokenizer, Tokenizer
from megatron_tlm.errors import DataError
from tests.unit.data.text_by_text import TextByText


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small corpus occupies several workers."""
    monkeypatch.setattr(documents.read_chunks, "__defaults__", (512,))


def run(inputs: list[str], prefix: Path, tokenizer: Tokenizer, **options: object) -> Result:
    return preprocess(inputs, str(prefix), tokenizer, Options(**({"workers": 1} | options)))  # type: ignore[arg-type]


def pair(prefix: Path, key: str = "text") -> tuple[bytes, bytes]:
    base = f"{prefix}_{key}_document"
    return Path(f"{base}.bin").read_bytes(), Path(f"{base}.idx").read_bytes()


def write_lines(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_ids_are_the_tokenizers_with_an_end_to_every_document(
    corpus: Path, tmp_path: Path, sentencepiece_tokenizer: SentencePieceTokenizer
) -> None:
    result = run([str(corpus)], tmp_path / "a", sentencepiece_tokenizer, append_eod=True, workers=1)
    assert result.prefixes == {"text": f"{tmp_path}/a_text_document"}
    dataset = IndexedDataset(result.prefixes["text"])
    texts = [json.loads(line)["text"] for line in corpus.read_text("utf-8").splitlines()]
    expected = [[*sentencepiece_tokenizer.encode(text), 2] for text in texts if text]
    assert [ids.tolist() for ids in dataset] == expected
    assert (result.counts.documents, result.counts.empty_documents, result.counts.tokens) == (
        120,
        20,
        sum(map(len, expected)),
    )
    assert dataset.header.dtype == np.uint16
    assert sorted(os.listdir(tmp_path)) == ["a_text_document.bin", "a_text_document.idx"]


@pytest.mark.parametrize("append_eod", [False, True])
def test_the_bytes_do_not_depend_on_workers_or_compression(
    corpus: Path, tmp_path: Path, sentencepiece_tokenizer: SentencePieceTokenizer, append_eod: bool
) -> None:
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    made = []
    for workers, source in ((1, corpus), (2, corpus), (3, packed)):
        prefix = tmp_path / str(workers)
        run([str(source)], prefix, sentencepiece_tokenizer, append_eod=append_eod, workers=workers)
        made.append(pair(prefix))
    assert made[0] == made[1] == made[2]


def test_an_empty_document_is_a_border_even_with_an_end_appended(tmp_path: Path) -> None:
    """Megatron's preprocess_data.py: ids `1 2 e`, nothing, `3 e`."""
    source = write_lines(tmp_path / "a.jsonl", {"text": "1 2"}, {"text": ""}, {"text": "3"})
    result = run([source], tmp_path / "a", NullTokenizer(9), append_eod=True, workers=1)
    dataset = IndexedDataset(result.prefixes["text"])
    assert [ids.tolist() for ids in dataset] == [[1, 2, 9], [3, 9]]
    assert dataset.document_borders.tolist() == [0, 1, 1, 2]


def test_a_list_of_texts_is_a_document_of_several_sequences(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", {"text": ["1 2", "", "3"]}, {"text": []}, {"text": "4"})
    result = run([source], tmp_path / "a", NullTokenizer(9), append_eod=True, workers=1)
    dataset = IndexedDataset(result.prefixes["text"])
    assert [ids.tolist() for ids in dataset] == [[1, 2], [3, 9], [4, 9]]
    assert dataset.document_borders.tolist() == [0, 2, 2, 3]


def test_each_key_has_a_pair(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", {"title": "1", "text": "2 3"}, {"title": "4", "text": "5"})
    result = run([source], tmp_path / "a", NullTokenizer(9), json_keys=["text", "title"], workers=2)
    assert [ids.tolist() for ids in IndexedDataset(result.prefixes["title"])] == [[1], [4]]
    assert [ids.tolist() for ids in IndexedDataset(result.prefixes["text"])] == [[2, 3], [5]]


def test_files_follow_each_other_in_the_order_given(tmp_path: Path) -> None:
    for name, text in (("b1.jsonl", "1"), ("b2.jsonl", "2"), ("a.jsonl", "3")):
        write_lines(tmp_path / name, {"text": text})
    inputs = [str(tmp_path / "b*.jsonl"), str(tmp_path / "a.jsonl")]
    result = run(inputs, tmp_path / "out", NullTokenizer(9), workers=2)
    assert [ids.tolist() for ids in IndexedDataset(result.prefixes["text"])] == [[1], [2], [3]]


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", {"text": "1 70000"})
    result = run([source], tmp_path / "a", NullTokenizer(80000), append_eod=True, workers=1)
    dataset = IndexedDataset(result.prefixes["text"])
    assert dataset.header.dtype == np.int32
    assert dataset[0].tolist() == [1, 70000, 80000]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_leaves_nothing(tmp_path: Path, workers: int) -> None:
    lines = [json.dumps({"text": f"document {number}"}) for number in range(1, 201)]
    lines[122] = '{"text": "cut'
    lines[150] = "worse"
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl:123 = .* is no JSON"):
        run([str(source)], tmp_path / "out" / "a", ByteTokenizer(), workers=workers)
    assert os.listdir(tmp_path / "out") == []


class DyingTokenizer(TextByText):
    """Is killed, as for want of memory, by one word."""

    def encode(self, text: str) -> list[int]:
        if "deadly" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(text)


def test_a_dying_worker_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", *({"text": "x" * 500} for _ in range(20)), {"text": "deadly"})
    with pytest.raises(DataError, match=r"workers = 2 lost one \(SIGKILL\) at .*a\.jsonl:\d+;"):
        run([source], tmp_path / "out" / "a", DyingTokenizer(), workers=2)
    assert os.listdir(tmp_path / "out") == []


def test_progress_counts_to_the_end(corpus: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    listener = Listener(progress=told.append, interval=30)
    result = preprocess([str(corpus)], str(tmp_path / "a"), ByteTokenizer(), Options(workers=2), listener)
    assert len(told) >= 4
    last = told[-1]
    assert last.counts == result.counts
    assert last.counts.text_bytes == last.counts.input_bytes == last.total_input_bytes == corpus.stat().st_size
    assert last.eta_seconds == 0


def test_progress_reads_well() -> None:
    progress = Progress(Counts(9, 1000, 0, 250_000, 1_500_000, 400), Counts(), 1000, 2.0)
    assert str(progress) == (
        "1000 documents, 250000 tokens, 1.5 MB | 500 documents/s, 0.75 MB/s, 125000 tokens/s | 40%, ETA 0:00:03"
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_no_document_is_an_error(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"input = .*a\.jsonl holds no document"):
        run([str(tmp_path / "a.jsonl")], tmp_path / "out" / "a", ByteTokenizer(), workers=workers)
    assert os.listdir(tmp_path / "out") == []


def test_workers_below_one_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="workers = 0 is below 1"):
        run([str(corpus)], tmp_path / "a", ByteTokenizer(), workers=0)


BAD = {
    "cut short": b'{"text": "cut',
    "several values": b'{"text": "a"} {"text": "b"}',
    "missing key": b'{"body": "a"}',
    "no text": b'{"text": null}',
    "no object": b'["text"]',
    "not UTF-8": b'{"text": "\xff"}',
    "surrogate": b'{"text": "\\udc00"}',
    "no JSON": b"text: a",
}
TOO_LONG = b'{"text": "' + b"x" * 1000 + b'"}'


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_bad_line", ["skip", "quarantine"])
def test_bad_lines_are_left_out_told_and_counted(tmp_path: Path, on_bad_line: str, workers: int) -> None:
    good = [json.dumps({"text": f"document {number}"}).encode() for number in range(100)]
    lines = list(good)
    for number, line in enumerate(BAD.values()):
        lines.insert(11 * number + 5, line)
    (tmp_path / "good.jsonl").write_bytes(b"\r\n".join(good))
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    told: list[str] = []
    options = Options(workers=workers, on_bad_line=on_bad_line)  # type: ignore[arg-type]
    prefix = str(tmp_path / "bad")
    result = preprocess([f"{prefix}.jsonl"], prefix, ByteTokenizer(), options, Listener(tell=told.append))
    run([str(tmp_path / "good.jsonl")], tmp_path / "good", ByteTokenizer())
    assert pair(tmp_path / "bad") == pair(tmp_path / "good")
    assert result.counts.bad_lines == dict.fromkeys(BAD, 1)
    addresses = [f"{prefix}.jsonl:{lines.index(line) + 1}" for line in BAD.values()]
    assert [line.split(" = ")[0] for line in told] == [f"bad line: {address}" for address in addresses]
    kept = tmp_path / "bad_bad_lines.jsonl"
    if on_bad_line == "skip":
        assert result.quarantine is None
        assert not kept.exists()
    else:
        assert result.quarantine == kept
        records = [json.loads(line) for line in kept.read_text().splitlines()]
        assert [record["raw"].encode("utf-8", "surrogateescape") for record in records] == list(BAD.values())
        assert [record["address"] for record in records] == addresses
        assert [record["kind"] for record in records] == list(BAD)


@pytest.mark.parametrize("kind", [*BAD, "null", "too long"])
def test_each_kind_stops_the_run_with_file_and_line(tmp_path: Path, kind: str) -> None:
    line = {**BAD, "null": b"null", "too long": TOO_LONG}[kind]
    source = tmp_path / "a.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n' + line + b"\r\n" + b'{"text": "b"}')
    with pytest.raises(DataError, match=r"a\.jsonl:3 = .*; (mend|write|choose|give|convert|raise)"):
        run([str(source)], tmp_path / "out" / "a", ByteTokenizer(), max_line_bytes=500)
    assert os.listdir(tmp_path / "out") == []


def test_of_a_line_too_long_the_reason_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b'{"text": "a"}\n' + TOO_LONG + b'\n{"text": "b"}\n')
    for on_bad_line in ("skip", "quarantine"):
        options = {"on_bad_line": on_bad_line, "max_line_bytes": 500}
        result = run([str(source)], tmp_path / "a", ByteTokenizer(), **options)
        assert (result.counts.documents, result.counts.bad_lines) == (2, {"too long": 1})
    assert result.quarantine is not None
    (record,) = map(json.loads, result.quarantine.read_text().splitlines())
    assert record["address"] == f"{source}:2"
    assert record["reason"].endswith("= 1012 bytes exceed the 500 of a line; raise --max-line-mb, or mend the line")
    assert record["raw"] == ""


def test_a_quarantine_without_bad_lines_is_no_file(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", {"text": "a"})
    stale = tmp_path / "a_bad_lines.jsonl"
    stale.write_text("of an earlier run")
    assert run([source], tmp_path / "a", ByteTokenizer(), on_bad_line="quarantine").quarantine is None
    assert not stale.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    source = write_lines(tmp_path / "a.jsonl", *({"text": "x" * 500} for _ in range(500)))
    (tmp_path / "out").mkdir()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            run([source], tmp_path / "out" / "a", ByteTokenizer())
        except DataError as error:
            os._exit(7 if "cannot be written (File too large); make room" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.listdir(tmp_path / "out") == []


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    line = json.dumps({"text": "words " * 200}) + "\n"
    peaks = []
    for megabytes in (2, 12):
        source = tmp_path / f"{megabytes}.jsonl"
        source.write_text(line * (megabytes * 1_000_000 // len(line)))
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            run([str(source)], tmp_path / f"{megabytes}", ByteTokenizer(), append_eod=True)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os.write(writer, str(peak).encode())
            os._exit(0)
        os.waitpid(child, 0)
        peaks.append(int(os.read(reader, 20)))
    assert peaks[1] - peaks[0] < 4000  # KB, where the input is 10 000 more and its ids are twice that


def test_a_prefix_that_names_no_file_is_refused(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"output_prefix = '' names no file; give the start of its path"):
        preprocess([str(corpus)], "", ByteTokenizer())


def test_an_input_given_twice_is_told(corpus: Path, tmp_path: Path) -> None:
    told: list[str] = []
    listener = Listener(tell=told.append)
    result = preprocess([str(corpus)] * 2, str(tmp_path / "out"), ByteTokenizer(), Options(workers=1), listener)
    once = preprocess([str(corpus)], str(tmp_path / "once"), ByteTokenizer(), Options(workers=1))
    assert result.counts.documents == once.counts.documents
    assert told == [f"input: {corpus} named more than once, read once"]


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match="max_line_bytes = 0 is below 1; give a positive size"):
        Options(max_line_bytes=0)
    with pytest.raises(DataError, match=r"json_keys = 'a/b' holds a '/' .* PREFIX_a/b_document; rename it"):
        Options(json_keys=["text", "a/b"])
