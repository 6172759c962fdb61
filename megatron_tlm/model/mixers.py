"""The module of each mixer of `plan.mixers`: a new one is a file in `layers/`, an entry there and an entry here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from megatron_tlm.layers.attention import Attention
from megatron_tlm.layers.gated_attention import GatedAttention
from megatron_tlm.layers.memory import MemorySizes
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions, ResidualBlock
from megatron_tlm.layers.titans import TitansLmm, TitansMag
from megatron_tlm.plan.mixers import find_mixer, gate_size
from megatron_tlm.plan.shape import ModelShape

Builder = Callable[[ModelShape, Placement, BlockOptions], ResidualBlock]


def build_mixer(shape: ModelShape, placement: Placement, options: BlockOptions) -> ResidualBlock:
    """This tensor rank's share of one layer's mixer; PlanError for a mixer that does not exist."""
    find_mixer(shape.mixer)
    return BUILDERS[shape.mixer](shape, placement, options)


def _attention(shape: ModelShape, placement: Placement, options: BlockOptions) -> ResidualBlock:
    return Attention(*_heads(shape), **_attention_options(shape, placement, options))


def _gated_attention(shape: ModelShape, placement: Placement, options: BlockOptions) -> ResidualBlock:
    common = _attention_options(shape, placement, options)
    return GatedAttention(*_heads(shape), gate_size=gate_size(shape), **common)


def _titans_lmm(shape: ModelShape, placement: Placement, options: BlockOptions) -> ResidualBlock:
    return TitansLmm(
        _memory_sizes(shape),
        persistent_tokens=shape.memory_persistent_tokens,
        epsilon=shape.norm_epsilon,
        placement=placement,
        options=options,
    )


def _titans_mag(shape: ModelShape, placement: Placement, options: BlockOptions) -> ResidualBlock:
    return TitansMag(
        _memory_sizes(shape),
        shape.num_query_groups,
        persistent_tokens=shape.memory_persistent_tokens,
        window=shape.attention_window,
        **_attention_options(shape, placement, options),
    )


def _memory_sizes(shape: ModelShape) -> MemorySizes:
    return MemorySizes(
        width=shape.hidden_size,
        num_heads=shape.num_attention_heads,
        head_width=shape.kv_channels,
        inner_width=shape.memory_width,
        chunk_size=shape.memory_chunk_size,
        conv_width=shape.memory_conv_width,
        max_step=shape.memory_max_step,
    )


def _heads(shape: ModelShape) -> tuple[int, int, int, int]:
    return shape.hidden_size, shape.num_attention_heads, shape.num_query_groups, shape.kv_channels


def _attention_options(shape: ModelShape, placement: Placement, options: BlockOptions) -> dict[str, Any]:
    return {
        "rotary_base": shape.rotary_base,
        "epsilon": shape.norm_epsilon,
        "placement": placement,
        "options": options,
        "qk_norm": shape.qk_norm,
    }


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "attention": _attention,
        "gated_attention": _gated_attention,
        "titans_lmm": _titans_lmm,
        "titans_mag": _titans_mag,
    }
)
