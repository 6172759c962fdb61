"""Exported tokenizers give the ids that training saw, and the text back."""

import json
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from megatron_tlm.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer
from megatron_tlm.errors import ExportError
from megatron_tlm.export.tokenizers import tokenizer_files
from tests.unit.export.texts import TEXTS, train_like

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", ["ours", "llama", "unigram"])
def test_a_sentencepiece_model_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    path = train_like(kind, tmp_path)
    files = tokenizer_files("SentencePieceTokenizer", path, None, 64)
    assert files is not None
    (tmp_path / "hf").mkdir()
    files.write_to(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = SentencePieceProcessor(model_file=str(path))
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False).input_ids == ids, text
        assert theirs(text).input_ids == ids, text
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    assert theirs.pad_token_id == (3 if kind == "ours" else None)
    assert (files.ids.begin, files.ids.end) == (1, 2)
    assert (tmp_path / "hf" / "tokenizer.model").read_bytes() == path.read_bytes()


def test_ours_loses_nothing(tmp_path: Path) -> None:
    path = train_like("ours", tmp_path)
    files = tokenizer_files(None, path, SentencePieceTokenizer(path).eod_id, 64)
    assert files is not None
    files.write_to(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.decode(theirs(text).input_ids) for text in TEXTS] == list(TEXTS)


def test_bytes_are_bytes(tmp_path: Path) -> None:
    files = tokenizer_files("ByteTokenizer", None, 256, 64)
    assert files is not None
    files.write_to(tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), ByteTokenizer()
    for text in TEXTS:
        assert theirs(text).input_ids == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert theirs.eos_token_id == files.ids.end == 256


def test_a_tokenizer_json_is_copied_and_its_end_named(tmp_path: Path) -> None:
    byte_files = tokenizer_files("ByteTokenizer", None, 256, 64)
    assert byte_files is not None
    byte_files.write_to(tmp_path)
    path = tmp_path / "tokenizer.json"
    files = tokenizer_files("HuggingFaceTokenizer", path, HuggingFaceTokenizer(path).eod_id, 64)
    assert files is not None
    (tmp_path / "out").mkdir()
    files.write_to(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


def test_made_up_tokens_have_none() -> None:
    assert tokenizer_files("NullTokenizer", None, None, 64) is None


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[")
    with pytest.raises(ExportError, match=r"tokenizer\.json is no tokenizer\.json"):
        tokenizer_files(None, tmp_path / "tokenizer.json", None, 64)
