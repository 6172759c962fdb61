"""How many ids a model knows."""

from typing import Literal

import pytest

from megatron_tlm.config.schema import Config, DataConfig, ModelConfig
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.data.vocabulary import read_vocabulary
from megatron_tlm.errors import ConfigError


def config(wanted: int | None, kind: Literal["ByteTokenizer"] | None = None) -> Config:
    model = ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=wanted)
    return Config(model=model, data=DataConfig(tokenizer_type=kind))


def test_the_models_ids_are_the_configured_ones_else_the_tokenizers() -> None:
    assert read_vocabulary(config(100)) == (None, 100)
    for wanted, found in ((None, 257), (257, 257), (300, 300)):
        tokenizer, size = read_vocabulary(config(wanted, "ByteTokenizer"))
        assert isinstance(tokenizer, ByteTokenizer)
        assert size == found


def test_ids_that_are_unknown_or_nowhere_told_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size is not given and no tokenizer is there to ask; give --tok"):
        read_vocabulary(config(None))
    with pytest.raises(ConfigError, match=r"vocab_size = 200 is below the 257 ids of the tokenizer; give --vocab-size"):
        read_vocabulary(config(200, "ByteTokenizer"))
