"""Three ways to write a tapered model down for others, and what config.json says in each.

    tapered   own widths, `per_layer_config`, a short file of remote code (transformers, and vLLM through it)
    padded    every MLP as wide as the widest, the rest zeros: a stock Llama; same logits, more weights
    deci      own widths in DeciLM's spelling, which vLLM, SGLang and llama.cpp's converter know natively

A model of one width is a stock Llama in its own right, whatever the flavour is called. Mixers other than attention, and
chains of MLPs, come with the whole model as remote code, tapered or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from megatron_tlm.errors import ExportError
from megatron_tlm.export.families import OWN, Family, family_of, own_parts
from megatron_tlm.plan.shape import ModelShape

Flavour = Literal["tapered", "padded", "deci"]
FLAVOURS: tuple[str, ...] = get_args(Flavour)
DECI_MULTIPLE = 256  # DeciLM's readers round a width up to it

# Sizes that config.json of our own family names as `ModelShape` does, where they are not its defaults.
OWN_SIZES = (
    "cms_levels",
    "cms_multiple",
    "attention_window",
    "memory_chunk_size",
    "memory_expansion",
    "memory_conv_width",
    "memory_persistent_tokens",
)
_REMOTE = Path(__file__).with_name("remote")


@dataclass(frozen=True)
class Written:
    """`shape` as written (padded: wider than the model's), config.json, and remote code by file name."""

    flavour: str
    shape: ModelShape
    config: Mapping[str, Any]
    code: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ids:
    """Ids of the tokenizer's special tokens, None where it has none."""

    begin: int | None = None
    end: int | None = None
    pad: int | None = None

    def to_json(self) -> dict[str, int | None]:
        return {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": self.pad}


def write_as(shape: ModelShape, flavour: str | None, *, positions: int, dtype: str, ids: Ids) -> Written:
    """The model in a flavour, by default `tapered`; ExportError for a model that has no such form."""
    family = family_of(shape)
    if flavour is not None and flavour not in FLAVOURS:
        raise ExportError(f"flavour = {flavour} is not among the {len(FLAVOURS)} there are; use {', '.join(FLAVOURS)}")
    base = _base_config(shape, family, positions, dtype) | ids.to_json()
    if family == OWN:
        return _own(shape, flavour, base)
    flavour = flavour or "tapered"
    if flavour == "deci":
        return _deci(shape, family, base)
    if len(set(shape.widths)) == 1:
        return Written("plain", shape, base, {})
    return _padded(shape, base) if flavour == "padded" else _tapered(shape, family, base)


def _base_config(shape: ModelShape, family: Family, positions: int, dtype: str) -> dict[str, Any]:
    """What a stock class reads; `intermediate_size` is the widest layer's."""
    return {
        "architectures": [family.causal_lm],
        "model_type": family.model_type,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": max(shape.widths),
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_query_groups,
        "head_dim": shape.kv_channels,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": shape.norm_epsilon,
        # Version 5 reads the first and ignores the second; version 4 does the opposite, and would take 10000.
        "rope_parameters": {"rope_theta": shape.rotary_base, "rope_type": "default"},
        "rope_theta": shape.rotary_base,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": shape.tied_embeddings,
        "torch_dtype": dtype,
    }


def _padded(shape: ModelShape, base: Mapping[str, Any]) -> Written:
    widest = max(shape.widths)
    added = 3 * shape.hidden_size * sum(widest - width for width in shape.widths)
    note = f"padding every MLP to {widest} adds {added:,} zero weights; the logits are the same"
    return Written("padded", replace(shape, widths=(widest,) * shape.num_layers), base, {}, (note,))


def _tapered(shape: ModelShape, family: Family, base: Mapping[str, Any]) -> Written:
    module = f"modeling_tapered_{family.model_type}"
    model, causal = f"Tapered{family.prefix}Model", f"Tapered{family.prefix}ForCausalLM"
    own = {
        "architectures": [causal],
        "auto_map": {"AutoModel": f"{module}.{model}", "AutoModelForCausalLM": f"{module}.{causal}"},
        "per_layer_config": _per_layer(shape),
    }
    code = _remote("modeling_tapered_llama.py").replace("Llama", family.prefix).replace("llama", family.model_type)
    return Written("tapered", shape, {**base, **own}, {f"{module}.py": code})


def _own(shape: ModelShape, flavour: str | None, base: Mapping[str, Any]) -> Written:
    if flavour not in (None, "tapered"):
        raise ExportError(
            f"flavour = {flavour} is for attention with one MLP per layer, which stock classes compute, and this model "
            f"has {own_parts(shape)}; leave --flavour out for remote code that computes it"
        )
    own = {
        "auto_map": {
            "AutoConfig": "configuration_tlm.TlmConfig",
            "AutoModel": "modeling_tlm.TlmModel",
            "AutoModelForCausalLM": "modeling_tlm.TlmForCausalLM",
        },
        "mixer": shape.mixer,
        "qk_norm": shape.qk_norm,
        **{name: size for name in OWN_SIZES if (size := getattr(shape, name)) != getattr(ModelShape, name)},
    }
    if shape.mixer == "gated_attention":
        own["attention_gate"] = shape.attention_gate
    if shape.memory_chunk_size:
        own["memory_max_step"] = shape.memory_max_step
    if len(set(shape.widths)) > 1:
        own["per_layer_config"] = _per_layer(shape)
    config = {name: value for name, value in base.items() if name != "rope_parameters"} | own
    code = {name: _remote(name) for name in ("configuration_tlm.py", "layers_tlm.py", "modeling_tlm.py")}
    return Written("remote", shape, config, code)


def _per_layer(shape: ModelShape) -> dict[str, Any]:
    return {str(layer): {"intermediate_size": width} for layer, width in enumerate(shape.widths)}


def _deci(shape: ModelShape, family: Family, base: Mapping[str, Any]) -> Written:
    if family.model_type != "llama":
        raise ExportError("qk_norm = true has no place in DeciLM's layers; use --flavour tapered or padded")
    rounds = [width for width in shape.widths if width % DECI_MULTIPLE]
    notes: tuple[str, ...] = ()
    if rounds:
        notes = (
            f"{len(rounds)} widths such as {rounds[0]} are not multiples of {DECI_MULTIPLE}, so they are written as "
            "intermediate_size: vLLM and transformers read that, llama.cpp's converter does not (use --format gguf)",
        )
    blocks = [_deci_block(shape, width, as_multiple=not rounds) for width in shape.widths]
    own = {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "auto_map": {
            "AutoConfig": "configuration_decilm.DeciLMConfig",
            "AutoModel": "modeling_decilm.DeciLMModel",
            "AutoModelForCausalLM": "modeling_decilm.DeciLMForCausalLM",
        },
        "block_configs": blocks,
    }
    code = {name: _remote(name) for name in ("configuration_decilm.py", "modeling_decilm.py")}
    return Written("deci", shape, {**base, **own}, code, notes)


def _deci_block(shape: ModelShape, width: int, *, as_multiple: bool) -> dict[str, Any]:
    """Readers take `ffn_mult` where it is there (2/3 of it times the model's width, rounded up), else the width."""
    size = {"ffn_mult": 3 * width / (2 * shape.hidden_size)} if as_multiple else {"intermediate_size": width}
    group = shape.num_attention_heads // shape.num_query_groups
    return {
        "attention": {"n_heads_in_group": group, "no_op": False, "replace_with_linear": False},
        "ffn": {**size, "no_op": False, "replace_with_linear": False},
    }


def _remote(name: str) -> str:
    return (_REMOTE / name).read_text(encoding="utf-8")
