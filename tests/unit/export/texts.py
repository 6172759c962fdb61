"""Texts with everything that tokenizers stumble over, and sentencepiece models of three makes trained on them."""

import json
from pathlib import Path

from sentencepiece import SentencePieceTrainer

from megatron_tlm.data.tokenizers import train_sentencepiece

TEXTS = (
    "Wide MLPs at the bottom, narrow ones at the top, the total unchanged.",
    "the cat sat on the mat and the hat of the cat sat on the rat that sat",
    "  two spaces,\ta tab,\n\n  two newlines and 12345 67.89 digits  ",
    "Größe, naïve café, señor, Привет мир, 東京と京都, emoji 🙂🚀, zero\u200dwidth",
    "def f(x):\n    return x ** 2  # a comment\n\n\nclass A:\n    pass\n",
    "",
    " ",
)


def train_like(kind: str, folder: Path) -> Path:
    """`ours` (the product's own), `llama` (BPE, a space put in front) or `unigram` (sentencepiece's defaults)."""
    if kind == "ours":
        corpus = folder / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"text": text * 4}) + "\n" for text in TEXTS if text))
        return train_sentencepiece([str(corpus)], folder / "ours", 420)
    options = {"model_type": "unigram", "vocab_size": 120, "hard_vocab_limit": False}
    if kind == "llama":
        options = {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, "split_digits": True}
        options |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        options |= {"allow_whitespace_only_pieces": True}
    SentencePieceTrainer.train(
        sentence_iterator=(text for text in TEXTS if text.strip()),
        model_prefix=str(folder / kind),
        minloglevel=2,
        **options,
    )
    return folder / f"{kind}.model"
