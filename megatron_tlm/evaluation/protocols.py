"""What is measured of a text, and how exactly: three protocols, each from data to passages and from scores to numbers.

stream      the tokens of a .bin/.idx pair in file order, documents one behind the other as in training
documents   each text by itself behind the end-of-document token; per token, word and byte
last word   LAMBADA: the last word behind the text before it; its perplexity, and how often it is the greedy guess
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.passages import Passage, continuation, rolling
from megatron_tlm.evaluation.perplexity import Perplexity, exp, total
from megatron_tlm.evaluation.score import Score
from megatron_tlm.evaluation.wikitext import count_words


@dataclass(frozen=True)
class Windows:
    """Tokens that a passage's inputs hold at most, and how many each passage but the first predicts."""

    context: int
    stride: int


@dataclass(frozen=True)
class Document:
    """A text to measure; `counted` is what its words and bytes are counted in, where that is another."""

    text: str
    counted: str


@dataclass(frozen=True)
class LastWords:
    """Over examples: mean nats of the whole last word, and the share of which each token is the greedy guess."""

    nats: float
    accuracy: float
    num_examples: int
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """Per word, not per token: exp of the mean over examples."""
        return exp(self.nats)

    @property
    def accuracy_error(self) -> float:
        """Standard error of the accuracy."""
        spread = self.accuracy * (1 - self.accuracy)
        return math.sqrt(spread / (self.num_examples - 1)) if self.num_examples > 1 else math.nan


def stream_passages(
    indexed: IndexedDataset, sequences: range, windows: Windows, limit: int | None = None
) -> list[Passage]:
    """Of these sequences of a pair, or their first `limit` passages."""
    size = indexed.header.dtype.itemsize
    first = int(indexed.byte_offsets[sequences.start]) // size if sequences else 0
    length = int(indexed.lengths[sequences.start : sequences.stop].sum(dtype=np.int64))
    passages = rolling(indexed.tokens[first : first + length], windows.context, windows.stride)
    return list(islice(passages, limit))


@dataclass(frozen=True)
class Documents:
    """Texts as passages, and the words and bytes behind them."""

    passages: Sequence[Passage]
    num_words: int
    num_bytes: int

    def perplexity(self, scores: Sequence[Score]) -> Perplexity:
        return total(scores, num_words=self.num_words, num_bytes=self.num_bytes)


def document_passages(documents: Sequence[Document], tokenizer: Tokenizer, windows: Windows) -> Documents:
    """Every token of every text is predicted, the first behind the end-of-document token."""
    passages: list[Passage] = []
    for ids in tokenizer.encode_batch([document.text for document in documents]):
        passages += rolling(np.array([tokenizer.eod_id, *ids], np.int32), windows.context, windows.stride)
    return Documents(
        passages=passages,
        num_words=sum(count_words(document.counted) for document in documents),
        num_bytes=sum(len(document.counted.encode()) for document in documents),
    )


def last_word_passages(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> list[Passage]:
    """Of texts of two words or more; what does not fit into `length` inputs is cut off at the front."""
    passages = []
    for number, text in enumerate(texts, start=1):
        before, space, word = text.rpartition(" ")
        if not space or not word:
            raise DataError(
                f"document {number} = {text[-40:]!r} does not end in a space and a word; LAMBADA's protocol needs "
                "both, leave it out"
            )
        context, ids = encode_pair(tokenizer, before, " " + word)
        passages.append(continuation(context or [tokenizer.eod_id], ids, length))
    return passages


def last_words(scores: Sequence[Score]) -> LastWords:
    """DataError where there is none."""
    if not scores:
        raise DataError("documents = 0 is below 1; give a file of texts")
    return LastWords(
        nats=math.fsum(score.nats for score in scores) / len(scores),
        accuracy=sum(score.greedy for score in scores) / len(scores),
        num_examples=len(scores),
        num_tokens=sum(score.num_tokens for score in scores),
    )


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Ids of a context and of what follows it, cut where the context alone would end: the harness's rule.

    Spaces at the context's end go to what follows, since most tokenizers put a space in front of a word.
    """
    bare = context.rstrip()
    whole, front = tokenizer.encode(context + continuation), tokenizer.encode(bare)
    return front, whole[len(front) :]
