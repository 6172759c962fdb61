"""Types by Megatron's names, and tokenizers that travel with a checkpoint."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.data.tokenizer_files import META_FILE
from megatron_tlm.data.tokenizers import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    NullTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_saved_tokenizer,
    load_tokenizer,
)
from megatron_tlm.errors import DataError

TEXT = "The quick brown fox\n\n  jumps over 13 dogs."


@given(st.text())
def test_bytes_come_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.encode_batch([text, text], threads=2) == [ids, ids]
    assert tokenizer.decode([*ids, tokenizer.eod_id]) == text
    assert all(0 <= id_ < 256 for id_ in ids)


def test_bytes_that_are_no_text_are_shown() -> None:
    assert ByteTokenizer().decode([72, 255, 105]) == "H\ufffdi"
    with pytest.raises(DataError, match=r"token id = 257 is outside the tokenizer's 0\.\.256"):
        ByteTokenizer().decode([257])


def test_numbers_stand_for_themselves() -> None:
    tokenizer = load_tokenizer("NullTokenizer", vocab_size=100)
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (101, 100)
    assert tokenizer.decode(tokenizer.encode("5 17 99")) == "5 17 99"


def test_megatrons_names_are_known(model_file: Path, huggingface_file: Path) -> None:
    for name in ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer", None):
        assert isinstance(load_tokenizer(name, model_file), SentencePieceTokenizer)
    for path in (huggingface_file, huggingface_file.parent):
        assert isinstance(load_tokenizer(None, path), HuggingFaceTokenizer)
        assert isinstance(load_tokenizer("HuggingFaceTokenizer", path), HuggingFaceTokenizer)
    assert isinstance(load_tokenizer("ByteTokenizer"), ByteTokenizer)
    assert isinstance(load_tokenizer("ByteLevelTokenizer"), ByteTokenizer)


@pytest.fixture(params=["sentencepiece", "huggingface", "byte", "null"])
def tokenizer(request: pytest.FixtureRequest, model_file: Path, huggingface_file: Path) -> Tokenizer:
    made: dict[str, Tokenizer] = {
        "sentencepiece": SentencePieceTokenizer(model_file),
        "huggingface": HuggingFaceTokenizer(huggingface_file),
        "byte": ByteTokenizer(),
        "null": NullTokenizer(100),
    }
    return made[request.param]


def test_arrays_are_the_lists(tokenizer: Tokenizer) -> None:
    texts = ["5 17 99", "", "7"]
    if tokenizer.type_name != "NullTokenizer":
        texts += [TEXT, "a\u2581\u2581b", "\u2581", "\u00e9\U0001f600\x00"]
    arrays = tokenizer.encode_arrays(texts)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert [array.tolist() for array in arrays] == tokenizer.encode_batch(texts) == [*map(tokenizer.encode, texts)]


def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "1 2 3" if isinstance(tokenizer, NullTokenizer) else TEXT
    tokenizer.save_to(tmp_path / "run")
    tokenizer.save_to(tmp_path / "run")  # saving again is no error
    assert all(path.name.startswith("tokenizer.") for path in (tmp_path / "run").iterdir())
    for loaded in (load_saved_tokenizer(tmp_path / "run"), load_tokenizer(None, tmp_path / "run")):
        assert type(loaded) is type(tokenizer)
        assert loaded.encode(text) == tokenizer.encode(text)
        assert (loaded.vocab_size, loaded.eod_id) == (tokenizer.vocab_size, tokenizer.eod_id)


def test_a_saved_tokenizer_of_another_type_is_refused(model_file: Path, tmp_path: Path) -> None:
    SentencePieceTokenizer(model_file).save_to(tmp_path)
    assert isinstance(load_tokenizer("Llama2Tokenizer", tmp_path), SentencePieceTokenizer)
    with pytest.raises(DataError, match=r"tokenizer_type = ByteTokenizer but .* holds a SentencePieceTokenizer"):
        load_tokenizer("ByteTokenizer", tmp_path)


def test_a_changed_file_is_refused(model_file: Path, tmp_path: Path) -> None:
    SentencePieceTokenizer(model_file).save_to(tmp_path)
    with (tmp_path / "tokenizer.model").open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        DataError, match=r"tokenizer\.model has the sha256 \w{64} where tokenizer\.meta\.json says \w{64}; save"
    ):
        load_saved_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (None, r"tokenizer\.meta\.json cannot be read"),
        ("not json", "does not describe a tokenizer"),
        ("[]", "does not describe a tokenizer"),
        ("{}", "does not describe a tokenizer"),
        ('{"tokenizer_type": "NewTokenizer", "model": null}', "tokenizer_type = 'NewTokenizer' is unknown"),
        ('{"tokenizer_type": "SentencePieceTokenizer", "model": "../a.model", "sha256": ""}', "a.model cannot be read"),
    ],
)
def test_a_folder_that_holds_no_tokenizer_is_refused(tmp_path: Path, meta: str | None, message: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "a.model").touch()
    if meta is not None:
        (folder / META_FILE).write_text(meta)
    with pytest.raises(DataError, match=message):
        load_saved_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sentencepiece", r"is unknown; did you mean SentencePieceTokenizer\? known are"),
        ("wordpiece", r"= 'wordpiece' is unknown; known are SentencePieceTokenizer, "),
        ("SentencePieceTokenizer", "needs a file; give --tokenizer-model"),
        ("NullTokenizer", "has no vocabulary of its own; give --vocab-size"),
        (None, "tokenizer_type = None names no tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_meant(name: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_tokenizer(name)
