"""Widths that are written down take the place of a schedule."""

import pytest

from megatron_tlm.config.dump import as_mapping, from_mapping
from megatron_tlm.config.schema import Config, ModelConfig, TaperConfig
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.plan.resolve import build_shape


def config(*widths: int) -> Config:
    model = ModelConfig(num_layers=3, hidden_size=32, num_attention_heads=4, seq_length=16, ffn_hidden_size=64)
    return Config(model, taper=TaperConfig(layer_widths=widths))


def test_given_widths_are_taken_as_they_are() -> None:
    assert build_shape(config(), 50).widths == (96, 64, 32)
    assert build_shape(config(7, 100, 33), 50).widths == (7, 100, 33)
    assert from_mapping(as_mapping(config(7, 100, 33)), "x") == config(7, 100, 33)


def test_one_per_layer_is_wanted() -> None:
    with pytest.raises(
        PlanError,
        match=r"^taper\.layer_widths = 64 32 holds 2 widths for num_layers = 3; give --layer-widths one for each of "
        r"the 3 layers, or --num-layers 2$",
    ):
        build_shape(config(64, 32), 50)


def test_a_width_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"taper\.layer_widths = 64 0 64 holds a width below 1"):
        config(64, 0, 64)
