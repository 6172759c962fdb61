import math

import pytest

from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.perplexity import Perplexity, total
from megatron_tlm.evaluation.score import Score


def test_every_token_counts_the_same() -> None:
    result = total([Score(6.0, 2, False), Score(1.0, 5, True)], num_words=4, num_bytes=14)
    assert (result.num_tokens, result.loss) == (7, 1.0)
    assert result.perplexity == pytest.approx(math.e)
    assert result.bits_per_token == pytest.approx(1 / math.log(2))
    assert result.word_perplexity == pytest.approx(math.exp(7 / 4))
    assert result.byte_perplexity == pytest.approx(math.sqrt(math.e))
    assert result.bits_per_byte == pytest.approx(0.5 / math.log(2))


def test_without_a_text_there_is_nothing_per_word() -> None:
    result = total([Score(6.0, 2, False)])
    assert (result.word_perplexity, result.byte_perplexity, result.bits_per_byte) == (None, None, None)


def test_no_data_is_refused() -> None:
    with pytest.raises(DataError, match="tokens to predict = 0 is below 1; give data of two tokens or more"):
        total([])


def test_a_hopeless_loss_is_infinite_and_not_an_error() -> None:
    assert Perplexity(1e6, 1).perplexity == math.inf
