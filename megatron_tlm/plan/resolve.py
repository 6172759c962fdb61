"""From what was asked for to the model's sizes, and which tensor degrees can share them."""

from dataclasses import replace
from fractions import Fraction
from math import lcm

from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.mixers import excess_matrices, find_mixer
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.taper import taper_widths

PAPER_MULTIPLE = 16


def build_shape(config: Config, vocab_size: int) -> ModelShape:
    """The model a configuration asks for; the tensor degree matters only through the default width multiple."""
    model, taper, kind = config.model, config.taper, config.architecture
    multiple = taper.width_multiple or lcm(PAPER_MULTIPLE, config.parallel.tensor_model_parallel_size)
    gated, memory = kind.mixer == "gated_attention", find_mixer(kind.mixer).has_memory
    unmatched = ModelShape(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_width,
        vocab_size=vocab_size,
        widths=(model.baseline_width,) * model.num_layers,
        tied_embeddings=not model.untie_embeddings_and_output_weights,
        rotary_base=model.rotary_base,
        norm_epsilon=model.norm_epsilon,
        mixer=kind.mixer,
        attention_gate=kind.attention_gate if gated else "none",
        qk_norm=kind.qk_norm,
        attention_window=kind.attention_window if kind.mixer == "titans_mag" else 0,
        cms_levels=kind.cms_levels,
        cms_multiple=multiple if kind.cms_levels > 1 else 1,
        memory_chunk_size=kind.memory_chunk_size if memory else 0,
        memory_expansion=kind.memory_expansion if memory else 0,
        memory_conv_width=kind.memory_conv_width if memory else 0,
        memory_persistent_tokens=kind.memory_persistent_tokens if memory else 0,
        memory_max_step=kind.memory_max_step if memory else 0.0,
    )
    _check_heads(unmatched, config.parallel.tensor_model_parallel_size)
    if taper.layer_widths:
        if len(taper.layer_widths) != model.num_layers:
            raise PlanError(
                f"taper.layer_widths = {' '.join(map(str, taper.layer_widths))} holds {len(taper.layer_widths)} widths "
                f"for num_layers = {model.num_layers}; give --layer-widths one for each of the {model.num_layers} "
                f"layers, or --num-layers {len(taper.layer_widths)}"
            )
        return replace(unmatched, widths=taper.layer_widths)
    baseline = matched_width(unmatched, model.baseline_width, multiple) if kind.match_params else model.baseline_width
    widths = taper_widths(
        model.num_layers,
        baseline,
        schedule=taper.taper_schedule,
        start=taper.taper_start,
        end=taper.taper_end,
        multiple=multiple,
    )
    return replace(unmatched, widths=widths)


def matched_width(shape: ModelShape, baseline: int, multiple: int) -> int:
    """The MLP width with which a layer has attention's parameters and `baseline`'s, as near as multiples allow.

    A multiple of twice `multiple`, so that 1.5 and 0.5 of it are multiples. PlanError where nothing would be left.
    """
    excess = Fraction(excess_matrices(shape), 3 * shape.hidden_size)
    if excess == 0:
        return baseline
    width = round((baseline - excess) / (2 * multiple)) * 2 * multiple
    if width <= 0:
        raise PlanError(
            f"architecture.match_params = true leaves {shape.mixer} an MLP of {width}: its matrices weigh "
            f"{float(excess):.0f} of the baseline width {baseline}; widen --ffn-hidden-size or give --no-match-params"
        )
    return width


def check_divisible(shape: ModelShape, degree: int) -> None:
    """PlanError naming all heads and layers that `degree` tensor ranks cannot share, and the degrees that could."""
    faults = _head_faults(shape, degree)
    odd = [f"{address} width {width}" for address, width in shape.mlp_widths() if width % degree]
    if not faults and not odd:
        return
    works = [other for other in range(1, shape.num_attention_heads + 1) if is_divisible(shape, other)]
    raise PlanError(
        f"tensor_model_parallel_size = {degree} does not divide {', '.join([*faults, *odd])}; use one of {works}"
        + (f", or a width_multiple that {degree} divides" if odd else "")
    )


def _check_heads(shape: ModelShape, degree: int) -> None:
    """PlanError where the heads alone refuse a degree: widths that fit it are not worth looking for."""
    if faults := _head_faults(shape, degree):
        works = [other for other in range(1, shape.num_attention_heads + 1) if not _head_faults(shape, other)]
        raise PlanError(
            f"tensor_model_parallel_size = {degree} does not divide {', '.join(faults)}; use one of {works}"
        )


def _head_faults(shape: ModelShape, degree: int) -> list[str]:
    heads, groups = shape.num_attention_heads, shape.num_query_groups
    return [f"num_attention_heads = {heads}"] * bool(heads % degree) + [f"num_query_groups = {groups}"] * bool(
        groups % degree and degree % groups
    )


def is_divisible(shape: ModelShape, degree: int) -> bool:
    """Whether `degree` tensor ranks can share every head and width of the model."""
    groups_fit = shape.num_query_groups % degree == 0 or degree % shape.num_query_groups == 0
    widths_fit = all(width % degree == 0 for _, width in shape.mlp_widths())
    return shape.num_attention_heads % degree == 0 and groups_fit and widths_fit
