"""What a tokenizer does to a text: the pieces of some telling ones, and whether decoding gives them back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.errors import DataError

UNFINISHED = "\ufffd"  # what a tokenizer shows for a character of which only some bytes are there
MOST_TOGETHER = 8  # ids; a character has four bytes at most

PROBES = {
    "plain": "Hello, world.",
    "leading space": "  two spaces before",
    "trailing space": "two spaces behind  ",
    "runs of spaces": "one two  three   four    end",
    "newlines": "line\n\nparagraph\n",
    "Windows newlines": "line\r\nline\r\n",
    "tabs": "\tif x:\n\t\treturn\t1",
    "only whitespace": " \n \t\n",
    "digits": "1234567890 3.14159",
    "accents, composed": "\u00e9\u00fc\u00f1",
    "accents, combining": "e\u0301u\u0308",
    "full width, ligature": "\uff21\uff22 \ufb01",
    "other scripts": "\u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "no-break and zero-width": "a\u00a0b\u200bc\ufeffd",
    "sentencepiece's space mark": "a\u2581b",
    "control characters": "a\x00b\x1bc",
    "an end-of-text piece": "a</s>b<|endoftext|>c",
}


@dataclass(frozen=True)
class Trip:
    """A text, its ids and what they decode to."""

    text: str
    ids: tuple[int, ...]
    decoded: str
    holds_end: bool  # ids of the text alone contain the end-of-document id

    @property
    def is_lossless(self) -> bool:
        return self.text == self.decoded


@dataclass(frozen=True)
class TripCount:
    """Over many texts: how many came back unchanged, and the first that did not."""

    texts: int
    lossless: int
    with_end: int
    text_bytes: int
    tokens: int
    first_lossy: Trip | None


def take_trip(tokenizer: Tokenizer, text: str) -> Trip:
    ids = tuple(tokenizer.encode(text))
    return Trip(text, ids, tokenizer.decode(ids), end_of(tokenizer) in ids)


def end_of(tokenizer: Tokenizer) -> int | None:
    """The end-of-document id, None for a tokenizer without one."""
    try:
        return tokenizer.eod_id
    except DataError:
        return None


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each id stands for; ids that are a character only together, such as its bytes, stand together."""
    told, start = [], 0
    while start < len(ids):
        ends = range(start + 1, min(start + MOST_TOGETHER, len(ids)) + 1)
        stop = next((end for end in ends if UNFINISHED not in tokenizer.decode(ids[start:end])), start + 1)
        together = f" of {stop - start} ids" if stop - start > 1 else ""
        told.append(f"{tokenizer.decode(ids[start:stop])!r}{together}")
        start = stop
    return told


def count_trips(tokenizer: Tokenizer, texts: Iterable[str]) -> TripCount:
    num = lossless = with_end = size = tokens = 0
    first: Trip | None = None
    for text in texts:
        trip = take_trip(tokenizer, text)
        num, lossless, with_end = num + 1, lossless + trip.is_lossless, with_end + trip.holds_end
        size, tokens = size + len(text.encode()), tokens + len(trip.ids)
        if first is None and not trip.is_lossless:
            first = trip
    return TripCount(num, lossless, with_end, size, tokens, first)


def first_difference(trip: Trip) -> str:
    """Where the decoded text leaves the original, with a little of both around it."""
    pairs = enumerate(zip(trip.text, trip.decoded, strict=False))
    shorter = min(len(trip.text), len(trip.decoded))
    at = next((place for place, (a, b) in pairs if a != b), shorter)
    around = slice(max(0, at - 10), at + 20)
    return f"at character {at}: {trip.text[around]!r} became {trip.decoded[around]!r}"
