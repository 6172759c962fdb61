"""SentencePiece: nothing of a text is lost, and training says what would have worked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from megatron_tlm.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from megatron_tlm.errors import DataError

TRICKY = [
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\n",
    "tab\tand\r\nreturn\x00nul",
    "\u2581 is how a space is written\u2581\u2581",
    "\u2585 is how unknown is written",
    "<s></s><pad><unk><0x41>",
    "日本語 🎉 é\u00a0\u3000\u2028\ufeff",
]


@pytest.mark.parametrize("text", TRICKY)
def test_a_tricky_text_comes_back(sentencepiece_tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = sentencepiece_tokenizer.encode(text)
    assert sentencepiece_tokenizer.decode(ids) == text
    assert not {0, 1, 2, 3} & set(ids)  # control pieces spelt out stay text


@given(st.text(max_size=60) | st.text(alphabet=" \n\t\u2581ab.1", max_size=40))
@example("  a \u2581 b\n\n  c ")
def test_every_text_comes_back(sentencepiece_tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert sentencepiece_tokenizer.decode(sentencepiece_tokenizer.encode(text)) == text


def test_threads_do_not_change_ids(sentencepiece_tokenizer: SentencePieceTokenizer) -> None:
    texts = [f"{text} {n}" for n in range(20) for text in TRICKY]
    assert sentencepiece_tokenizer.encode_batch(texts, threads=2) == sentencepiece_tokenizer.encode_batch(texts)


def test_ids_are_sentencepieces_own(sentencepiece_tokenizer: SentencePieceTokenizer, model_file: Path) -> None:
    text = "The quick brown fox\n\n  jumps."
    assert sentencepiece_tokenizer.encode(text) == SentencePieceProcessor(model_file=str(model_file)).encode(text)


def test_control_pieces_and_bytes_come_first(sentencepiece_tokenizer: SentencePieceTokenizer, model_file: Path) -> None:
    processor = SentencePieceProcessor(model_file=str(model_file))
    assert [processor.id_to_piece(i) for i in range(5)] == ["<unk>", "<s>", "</s>", "<pad>", "<0x00>"]
    assert sentencepiece_tokenizer.vocab_size == 400
    assert sentencepiece_tokenizer.eod_id == 2


def test_training_is_repeatable_and_quiet(corpus: Path, tmp_path: Path, model_file: Path) -> None:
    program = (
        "import sys; from megatron_tlm.data.sentencepiece_tokenizer import train_sentencepiece as train\n"
        "train([sys.argv[1]], sys.argv[2], 400)"
    )
    command = [sys.executable, "-c", program, str(corpus), str(tmp_path / "new" / "tok")]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""
    assert (tmp_path / "new" / "tok.model").read_bytes() == model_file.read_bytes()
    assert len((tmp_path / "new" / "tok.vocab").read_text("utf-8").splitlines()) == 400


def test_training_reports_what_it_does(corpus: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    train_sentencepiece([str(corpus)], tmp_path / "tok", 350, max_documents=30, report=lines.append)
    assert lines[0] == "reading 1 file(s)"
    assert lines[1].startswith("training 350 pieces on 30 texts")
    assert lines[2].startswith(f"wrote {tmp_path}/tok.model: 350 pieces")


def test_a_vocabulary_too_large_names_one_that_works(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocab_size = 50000 is too large .* give at most \d+ or more text") as failure:
        train_sentencepiece([str(corpus)], tmp_path / "tok", 50000)
    works = int(str(failure.value).split("at most ")[1].split()[0])
    assert not list(tmp_path.iterdir())
    train_sentencepiece([str(corpus)], tmp_path / "tok", works)
    with pytest.raises(DataError, match="is too large"):
        train_sentencepiece([str(corpus)], tmp_path / "tok", works + 1)


def test_a_vocabulary_too_small_names_one_that_works(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocab_size = 200 is too small .* give more than \d+") as failure:
        train_sentencepiece([str(corpus)], tmp_path / "tok", 200)
    works = int(str(failure.value).split("more than ")[1].split()[0]) + 1
    train_sentencepiece([str(corpus)], tmp_path / "tok", works)


def test_training_on_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": ""}) + "\n")
    with pytest.raises(DataError, match="holds no text under text"):
        train_sentencepiece([str(path)], tmp_path / "tok", 400)


def test_long_documents_are_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("zyzzyva xylophone\n" * 5000)
    train_sentencepiece([str(path)], tmp_path / "tok", 290)
    tokenizer = SentencePieceTokenizer(tmp_path / "tok.model")
    assert len(tokenizer.encode("zyzzyva xylophone")) <= 4


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer_model = .*none\.model cannot be read \(No such file"):
        SentencePieceTokenizer(tmp_path / "none.model")
    (tmp_path / "a.model").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"tokenizer_model = .*a\.model is empty \(0 bytes\); give the tokenizer's file"
    ):
        SentencePieceTokenizer(tmp_path / "a.model")
    (tmp_path / "a.model").write_bytes(b"no model at all")
    with pytest.raises(DataError, match="is no sentencepiece model"):
        SentencePieceTokenizer(tmp_path / "a.model")


def test_ids_it_does_not_have_are_refused(sentencepiece_tokenizer: SentencePieceTokenizer) -> None:
    with pytest.raises(DataError, match=r"token id = 400 is outside the tokenizer's 0\.\.399"):
        sentencepiece_tokenizer.decode([5, 400])
    with pytest.raises(DataError, match="token id = -1 is outside"):
        sentencepiece_tokenizer.decode([5, -1])
