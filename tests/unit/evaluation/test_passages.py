"""Passages of a stream: every token but the first predicted once, in order, from as many before it as are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.errors import ConfigError, DataError
from megatron_tlm.evaluation.passages import Passage, check_stride, continuation, rolling, stack


@given(length=st.integers(0, 60), context=st.integers(1, 12), data=st.data())
def test_each_token_but_the_first_is_predicted_once_in_order(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    stream = np.arange(length, dtype=np.uint16)
    passages = list(rolling(stream, context, stride))
    predicted = [int(token) for passage in passages for token in passage.ids[-passage.scored :]]
    assert predicted == list(range(1, length))
    for passage in passages:
        assert list(passage.ids) == list(range(int(passage.ids[0]), int(passage.ids[-1]) + 1))
        assert len(passage.ids) - 1 == min(context, length - 1)
        assert passage.scored < len(passage.ids)
    assert all(passage.scored == stride for passage in passages[1:-1])


def test_the_picture_of_the_docstring() -> None:
    first, second, third = rolling(np.arange(9), 4, 2)
    assert (first.ids.tolist(), first.scored) == ([0, 1, 2, 3, 4], 4)
    assert (second.ids.tolist(), second.scored) == ([2, 3, 4, 5, 6], 2)
    assert (third.ids.tolist(), third.scored) == ([4, 5, 6, 7, 8], 2)


@given(length=st.integers(0, 40), context=st.integers(1, 9), data=st.data())
def test_they_are_the_harnesss_rolling_windows(length: int, context: int, data: st.DataObject) -> None:
    utils = pytest.importorskip("lm_eval.utils", reason="lm-evaluation-harness is not installed")
    stride = data.draw(st.integers(1, context))
    tokens = list(range(1, length + 1))
    theirs = [
        (front + predicted, len(predicted))
        for front, predicted in map(
            utils.make_disjoint_window, utils.get_rolling_token_windows(tokens, 0, context, context - stride + 1)
        )
    ]
    ours = [(passage.ids.tolist(), passage.scored) for passage in rolling(np.array([0, *tokens]), context, stride)]
    assert ours == theirs


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_outside_the_window_is_refused(stride: int) -> None:
    with pytest.raises(ConfigError, match=rf"--stride = {stride} lies outside 1\.\.4, the tokens of a window"):
        check_stride(4, stride)


def test_a_long_context_loses_its_front() -> None:
    assert continuation([1, 2, 3], [4, 5], 8).ids.tolist() == [1, 2, 3, 4, 5]
    cut = continuation([1, 2, 3], [4, 5], 3)
    assert (cut.ids.tolist(), cut.scored) == ([2, 3, 4, 5], 2)


def test_what_cannot_be_a_continuation_is_told() -> None:
    with pytest.raises(DataError, match="context = 0 tokens is below 1; put the end-of-document token before"):
        continuation([], [1], 4)
    with pytest.raises(DataError, match="continuation = 5 tokens exceeds the 4 that the model takes"):
        continuation([1], [1, 2, 3, 4, 5], 4)


def test_a_batch_is_padded_on_the_right_and_counts_what_is_scored() -> None:
    ids, counted = stack([Passage(np.array([5, 6, 7, 8]), 2), Passage(np.array([9, 10]), 1)])
    assert ids.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    assert counted.tolist() == [[False, True, True], [True, False, False]]
