"""Perplexity: exp of the mean cross-entropy per token, per word or per byte (natural logarithm)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.score import Score


@dataclass(frozen=True)
class Perplexity:
    """Nats over all predicted tokens; `num_words` and `num_bytes` are of the text behind them, 0 where not known."""

    nats: float
    num_tokens: int
    num_words: int = 0
    num_bytes: int = 0

    @property
    def loss(self) -> float:
        """Nats per token: what training calls loss."""
        return self.nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        return exp(self.loss)

    @property
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)

    @property
    def word_perplexity(self) -> float | None:
        return exp(self.nats / self.num_words) if self.num_words else None

    @property
    def byte_perplexity(self) -> float | None:
        return exp(self.nats / self.num_bytes) if self.num_bytes else None

    @property
    def bits_per_byte(self) -> float | None:
        return self.nats / self.num_bytes / math.log(2) if self.num_bytes else None


def exp(nats: float) -> float:
    """e to a power, infinite where that leaves the floats."""
    return math.exp(nats) if nats < 700 else math.inf


def total(scores: Sequence[Score], *, num_words: int = 0, num_bytes: int = 0) -> Perplexity:
    """Of all scored tokens together. DataError where there is none."""
    num_tokens = sum(score.num_tokens for score in scores)
    if num_tokens == 0:
        raise DataError("tokens to predict = 0 is below 1; give data of two tokens or more")
    return Perplexity(math.fsum(score.nats for score in scores), num_tokens, num_words, num_bytes)
