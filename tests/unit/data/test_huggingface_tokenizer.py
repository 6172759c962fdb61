"""tokenizer.json: the backend's own ids, its end of document, and clear words where it cannot work."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.data.documents import Chunk
from megatron_tlm.data.encode import Encoder
from megatron_tlm.data.huggingface_tokenizer import HuggingFaceTokenizer
from megatron_tlm.errors import DataError


@given(st.text(max_size=60).filter(lambda text: "<|endoftext|>" not in text))  # which would become the end's id
def test_every_text_comes_back(huggingface_file: Path, text: str) -> None:
    tokenizer = HuggingFaceTokenizer(huggingface_file)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_the_backends_own(huggingface_file: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(huggingface_file))
    tokenizer = HuggingFaceTokenizer(huggingface_file.parent)  # the folder will do
    texts = ["The quick brown fox", "", "  jumps\n"]
    assert tokenizer.encode_batch(texts) == [backend.encode(text).ids for text in texts]
    assert tokenizer.encode_batch(texts, threads=2) == tokenizer.encode_batch(texts)
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (backend.get_vocab_size(), 0)


def test_the_vocabulary_is_counted_once(huggingface_file: Path) -> None:
    """The package makes a dict of all its pieces to be asked: as slow as encoding some 20 kB of text."""
    tokenizer = HuggingFaceTokenizer(huggingface_file)
    tokenizer._backend = backend = Mock(wraps=tokenizer._backend)
    encoder = Encoder(tokenizer, ("text",), append_eod=True, stop=True)
    for number in range(3):
        assert encoder(Chunk("a", "file", number, b"fox", 3)).documents == 1
        assert tokenizer.decode(tokenizer.encode("fox")) == "fox"
    assert backend.get_vocab.call_count == 1


def test_the_end_of_a_document_can_be_named_beside_the_file(huggingface_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(huggingface_file.read_bytes())
    config = tmp_path / "tokenizer_config.json"
    for named in ("e", {"content": "e", "special": True}):
        config.write_text(json.dumps({"eos_token": named}))
        tokenizer = HuggingFaceTokenizer(tmp_path)
        assert tokenizer.encode("e") == [tokenizer.eod_id]
    config.write_text(json.dumps({"eos_token": "not a token"}))
    assert HuggingFaceTokenizer(tmp_path).eod_id == 0


def test_no_end_of_a_document_is_told_when_needed(huggingface_file: Path, tmp_path: Path) -> None:
    model = json.loads(huggingface_file.read_text())
    model["added_tokens"] = []
    del model["model"]["vocab"]["<|endoftext|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(model))
    tokenizer = HuggingFaceTokenizer(tmp_path)
    assert tokenizer.encode("fox")
    with pytest.raises(DataError, match="no end-of-document token among"):
        _ = tokenizer.eod_id


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        HuggingFaceTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"is no tokenizer\.json"):
        HuggingFaceTokenizer(tmp_path)


def test_a_missing_package_is_told(huggingface_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"needs the package tokenizers, .*; pip install tokenizers"):
        HuggingFaceTokenizer(huggingface_file)
