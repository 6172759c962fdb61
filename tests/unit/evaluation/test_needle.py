"""Needles: exact lengths, hidden at their depth, the same by seed; a copying model wins, a guessing one does not."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from megatron_tlm.data.sentencepiece_tokenizer import SentencePieceTokenizer
from megatron_tlm.data.tokenizers import ByteTokenizer, Tokenizer, train_sentencepiece
from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.needle import KINDS, Haystack, Kind, score

RNG = random.Random(0)
WORDS = ["stone", "water", "light", "house", "voice", "north", "paper", "green", "seven", "small", "under", "never"]
TEXTS = [" ".join(" ".join(RNG.choices(WORDS, k=8)) + "." for _ in range(60)) for _ in range(8)]
BYTES = ByteTokenizer()


def copying(prompt: Sequence[int], count: int) -> list[int]:
    """Goes on as the text did after the longest earlier occurrence of its end."""
    ids = list(prompt)
    best = max(range(1, len(ids)), key=lambda at: _common(ids, at))
    return ids[best : best + count]


def _common(ids: list[int], at: int) -> int:
    size = 0
    while size < at and ids[at - 1 - size] == ids[-1 - size]:
        size += 1
    return size


def guessing(prompt: Sequence[int], count: int) -> list[int]:
    rng = random.Random(len(prompt))
    return [rng.choice(b"0123456789abcdef-") for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_lengths_are_exact_and_needles_stand_at_their_depth(kind: Kind, depth: float) -> None:
    hay = Haystack(TEXTS, BYTES)
    for index in range(3):
        example = hay.example(kind, 1500, depth, 7, index)
        assert len(example.prompts) == (4 if kind.startswith("multi") else 1)
        for prompt, value in zip(example.prompts, example.values, strict=True):
            assert len(prompt) + example.max_new_tokens == 1500
            assert prompt[0] == BYTES.eod_id
            text = BYTES.decode(prompt[1:])
            assert text.count(f"is {value}.") == 1
            assert text.endswith(" is")
        text = BYTES.decode(example.prompts[0][1:])
        place = text.index(f"is {example.values[0]}.") / len(text.rpartition("\n")[0])
        assert abs(place - depth) < 0.35 if kind.startswith("multi") else abs(place - depth) < 0.12
        before = text[: text.index(example.values[0])].rpartition("\n")[0].rstrip("\n")
        assert depth in (0.0, 1.0) or before.endswith(".")


def test_examples_are_a_function_of_their_numbers() -> None:
    hay = Haystack(TEXTS, BYTES)
    assert hay.example("uuid", 900, 0.5, 1, 0) == Haystack(TEXTS, BYTES).example("uuid", 900, 0.5, 1, 0)
    others = [(2, 0), (1, 1)]
    assert all(hay.example("uuid", 900, 0.5, *other) != hay.example("uuid", 900, 0.5, 1, 0) for other in others)


def test_what_is_hidden_was_not_there_before() -> None:
    known = [str(number) for number in range(10_000, 100_000) if number != 54321]
    example = Haystack(["x " * 900, " ".join(known)], BYTES)
    with pytest.raises(DataError, match="100 drawn values of pass-key are all in it; give another text"):
        example.example("pass-key", 500, 0.5, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_copying_model_finds_all_and_a_guessing_one_none(kind: Kind, depth: float) -> None:
    hay = Haystack(TEXTS, BYTES)
    examples = [hay.example(kind, 1200, depth, 3, index) for index in range(3)]
    assert [score(example, copying, BYTES) for example in examples] == [1.0, 1.0, 1.0]
    assert [score(example, guessing, BYTES) for example in examples] == [0.0, 0.0, 0.0]


def test_a_sentencepiece_model_copies_too(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    train_sentencepiece([str(tmp_path / "text.txt")], tmp_path / "tok", vocab_size=320)
    tokenizer: Tokenizer = SentencePieceTokenizer(tmp_path / "tok.model")
    hay = Haystack(TEXTS, tokenizer)
    for kind in KINDS:
        example = hay.example(kind, 600, 0.5, 3, 0)
        assert {len(prompt) + example.max_new_tokens for prompt in example.prompts} == {600}
        assert score(example, copying, tokenizer) == 1.0


def test_too_short_is_told_with_both_numbers() -> None:
    hay = Haystack(TEXTS[:1], BYTES)
    with pytest.raises(DataError, match=r"length = 100 tokens leaves 0 for a haystack .* of uuid; give \d+ or more"):
        hay.example("uuid", 100, 0.5, 0, 0)
    with pytest.raises(DataError, match=rf"haystack = {len(hay)} tokens is below the \d+ that a length of 9000 takes"):
        hay.example("uuid", 9000, 0.5, 0, 0)
