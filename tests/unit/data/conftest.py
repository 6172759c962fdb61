"""A small corpus and tokenizers made from it, once per session."""

import json
from pathlib import Path

import pytest

from megatron_tlm.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, train_sentencepiece

TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\nIt did so twice.",
    "  indented code:\n    if x == 10:\n\treturn  x  # two  spaces\r\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "A tapered model is wide below and narrow above; the total is the same.",
    "",
    "Numbers: 1234567890, 3.14159, -273.15 and 6e23.\n" * 3,
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents, every sixth empty."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [json.dumps({"id": i, "text": text and f"{i}. {text}"}) for i, text in enumerate(TEXTS * 20)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model_file(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_sentencepiece([str(corpus)], tmp_path_factory.mktemp("model") / "tok", 400)


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(model_file: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model_file)


@pytest.fixture(scope="session")
def huggingface_file(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer.json with an end-of-document token."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("huggingface") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def byte_tokenizer() -> ByteTokenizer:
    return ByteTokenizer()
