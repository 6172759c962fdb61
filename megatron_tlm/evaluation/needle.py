"""Needle in a haystack: a sentence hidden in a long text, and whether a model repeats its value when asked.

    <eod> haystack ... needle ... haystack  question  ->  value

Prompt and room for the answer together have exactly the length asked for, in tokens. The haystack is local text from a
place drawn for each example; the needle stands at the sentence end next before its depth (0: first, 1: right before the
question). The question ends in the words that come before the value in the needle, so that a model which was never
taught to answer can go on too. Of several needles each is asked by itself behind the same text (multi-query).
"""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from megatron_tlm.errors import DataError

if TYPE_CHECKING:  # a tokenizer's library takes its time, and `needle --help` asks for the kinds alone
    from megatron_tlm.data.tokenizers import Tokenizer

Kind = Literal["pass-key", "number", "uuid", "multi-number", "multi-uuid"]
KINDS: tuple[Kind, ...] = ("pass-key", "number", "uuid", "multi-number", "multi-uuid")
Answer = Callable[[Sequence[int], int], Sequence[int]]
"""Ids of a prompt and how many more at most -> the ids that follow."""

MULTIPLE = 4
SLACK = 4  # tokens beyond the value: a space, a newline
TRIES = 100

_ADJECTIVES = (
    "amber", "ancient", "bitter", "blue", "brave", "bright", "broken", "calm", "clever", "cold", "copper", "crimson",
    "curious", "distant", "early", "faint", "gentle", "golden", "hollow", "humble", "idle", "ivory", "jolly", "keen",
    "late", "lazy", "lonely", "lucky", "mellow", "narrow", "noisy", "olive", "pale", "patient", "proud", "quiet",
    "rapid", "rusty", "silver", "sleepy", "steady", "sudden", "tender", "velvet", "violet", "wild", "wooden", "yellow",
)  # fmt: skip
_NOUNS = (
    "anchor", "apple", "badger", "basket", "beacon", "bridge", "button", "candle", "canyon", "castle", "cedar", "cloud",
    "compass", "dragon", "engine", "falcon", "feather", "forest", "garden", "glacier", "hammer", "harbor", "island",
    "jacket", "kettle", "ladder", "lantern", "marble", "meadow", "mirror", "needle", "ocean", "orchard", "pebble",
    "pencil", "pigeon", "planet", "pocket", "ribbon", "river", "saddle", "shadow", "spider", "spoon", "thunder",
    "tunnel", "walnut", "window",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One text with its needles: `prompts` end in a question each, whose answer is the value of the same place."""

    prompts: tuple[tuple[int, ...], ...]
    values: tuple[str, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class _Needle:
    sentence: str
    question: str
    value: str


class Haystack:
    """Local text as tokens, and where its sentences end; what is hidden in it must not be in it already."""

    def __init__(self, texts: Sequence[str], tokenizer: "Tokenizer") -> None:
        self._tokenizer, self._text = tokenizer, "\n".join(texts)
        self._ids = [token for ids in tokenizer.encode_batch(list(texts)) for token in ids]
        self._ends = frozenset(token for token in set(self._ids) if tokenizer.decode([token]).rstrip().endswith("."))

    def __len__(self) -> int:
        return len(self._ids)

    def example(self, kind: Kind, length: int, depth: float, seed: int, index: int) -> Example:
        """The same for the same numbers. DataError where the haystack, or the length, is too short for it."""
        rng = random.Random(f"{seed}/{kind}/{length}/{depth:g}/{index}")
        needles = self._needles(kind, rng)
        encode = self._tokenizer.encode
        hidden = [encode(f"\n{needle.sentence}\n") for needle in needles]
        asked = [encode(f"\n{needle.question}") for needle in needles]
        room = max(len(encode(f" {needle.value}.")) for needle in needles) + SLACK
        fill = length - 1 - sum(map(len, hidden)) - max(map(len, asked)) - room
        if fill < 1:
            raise DataError(
                f"length = {length} tokens leaves {max(fill, 0)} for a haystack around the needles of {kind}; give "
                f"{length - fill + 1} or more"
            )
        if fill > len(self._ids) - 1:
            raise DataError(
                f"haystack = {len(self._ids)} tokens is below the {fill + 1} that a length of {length} takes; give "
                "more text"
            )
        depths = [depth, *(rng.random() for _ in needles[1:])]
        start = rng.randrange(len(self._ids) - fill)
        prompts = []
        for question in asked:
            # A shorter question leaves more for the haystack: every prompt has the same length.
            hay = self._ids[start : start + fill + max(map(len, asked)) - len(question)]
            prompts.append((self._tokenizer.eod_id, *self._hide(hay, hidden, depths), *question))
        return Example(tuple(prompts), tuple(needle.value for needle in needles), room)

    def _needles(self, kind: Kind, rng: random.Random) -> list[_Needle]:
        """As many as the kind has, none of whose keys or values the text knows."""
        if kind == "pass-key":
            value = self._new(lambda: str(rng.randrange(10_000, 100_000)), kind)
            return [_Needle(f"The pass key is {value}. Remember it.", "What is the pass key? The pass key is", value)]
        what = kind.removeprefix("multi-")
        draw = (lambda: str(rng.randrange(10**6, 10**7))) if what == "number" else (lambda: _uuid(rng))
        count = MULTIPLE if kind.startswith("multi-") else 1
        keys = [f"{rng.choice(_ADJECTIVES)} {noun}" for noun in rng.sample(_NOUNS, count)]
        return [
            _Needle(
                f"The special magic {what} for {key} is {value}.",
                f"What is the special magic {what} for {key}? The special magic {what} for {key} is",
                value,
            )
            for key, value in zip(keys, (self._new(draw, kind) for _ in keys), strict=True)
        ]

    def _new(self, draw: Callable[[], str], kind: Kind) -> str:
        for _ in range(TRIES):
            value = draw()
            if value not in self._text:
                return value
        raise DataError(f"haystack = {TRIES} drawn values of {kind} are all in it; give another text")

    def _hide(self, hay: Sequence[int], hidden: Sequence[Sequence[int]], depths: Sequence[float]) -> list[int]:
        """The needles between sentences of the hay, each at the last end of one up to its depth."""
        wanted = zip(depths, hidden, strict=True)
        places = sorted((self._sentence_end(hay, round(depth * len(hay))), ids) for depth, ids in wanted)
        cuts = [0, *(place for place, _ in places), len(hay)]
        pieces = [hay[a:b] for a, b in pairwise(cuts)]
        whole = list(pieces[0])
        for (_, ids), piece in zip(places, pieces[1:], strict=True):
            whole += [*ids, *piece]
        return whole

    def _sentence_end(self, hay: Sequence[int], place: int) -> int:
        """The place itself at either end of the hay; else behind the last full stop before it, if there is one."""
        if place >= len(hay):
            return len(hay)
        return next((at for at in range(place, 0, -1) if hay[at - 1] in self._ends), 0)


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def score(example: Example, answer: Answer, tokenizer: "Tokenizer") -> float:
    """The share of values that the text which follows their question holds."""
    found = 0
    for prompt, value in zip(example.prompts, example.values, strict=True):
        found += value in tokenizer.decode(list(answer(prompt, example.max_new_tokens)))
    return found / len(example.values)
