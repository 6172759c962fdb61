"""Tokens as passages to measure: where each begins, and how many of its last tokens count.

    stream     t0 t1 t2 t3 t4 t5 t6 t7 t8          context 4, stride 2
    passages   t0[t1 t2 t3 t4]                     the first predicts as many tokens as a context holds
                     t2 t3 t4 t5[t5 t6]            each later one the next two, from the four before each of them
                           ...

One rule for all: the first passage predicts `context` tokens, each later one the next `stride`, its inputs being the
`context` tokens that end before its last. So every token of a stream but the first is predicted once. With stride =
context passages do not overlap, but for the last, which is filled up with what comes before. This is the rolling window
of EleutherAI's lm-evaluation-harness (its context_len is context - stride + 1).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.errors import ConfigError, DataError


class Passage(NamedTuple):
    """Ids whose last `scored` are predicted from all before them; at least one id is not."""

    ids: NDArray[np.integer]
    scored: int


def check_stride(context: int, stride: int) -> None:
    """ConfigError where a token would be predicted twice, or none."""
    if not 1 <= stride <= context:
        raise ConfigError(
            f"--stride = {stride} lies outside 1..{context}, the tokens of a window (--seq-length); give one inside"
        )


def rolling(stream: NDArray[np.integer], context: int, stride: int) -> Iterator[Passage]:
    """Passages that predict every token of a stream but the first, once and in order; views, not copies."""
    stop = min(len(stream), context + 1)
    if stop > 1:
        yield Passage(stream[:stop], stop - 1)
    while stop < len(stream):
        scored = min(stride, len(stream) - stop)
        stop += scored
        yield Passage(stream[stop - context - 1 : stop], scored)


def continuation(context: Sequence[int], ids: Sequence[int], length: int) -> Passage:
    """What `ids` are worth behind a context, which loses its oldest tokens where both do not fit into `length` inputs.

    DataError for an empty context, and for ids that do not fit by themselves.
    """
    if not context:
        raise DataError("context = 0 tokens is below 1; put the end-of-document token before the text")
    if len(ids) > length:
        raise DataError(
            f"continuation = {len(ids)} tokens exceeds the {length} that the model takes; shorten it, or give a model "
            "of longer sequences"
        )
    whole = np.fromiter((*context, *ids), np.int64, len(context) + len(ids))
    return Passage(whole[-(length + 1) :], len(ids))


def stack(passages: Sequence[Passage]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Passages as one batch: ids [B, S + 1], padded on the right with 0, and which of the S labels count [B, S].

    A causal model does not look to the right, so padding changes nothing to its left.
    """
    longest = max(len(passage.ids) for passage in passages)
    ids = np.zeros((len(passages), longest), np.int64)
    counted = np.zeros((len(passages), longest - 1), np.bool_)
    for row, passage in enumerate(passages):
        length = len(passage.ids)
        ids[row, :length] = passage.ids
        counted[row, length - 1 - passage.scored : length - 1] = True
    return ids, counted
