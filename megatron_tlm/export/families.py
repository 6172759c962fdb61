"""The Hugging Face model classes that compute what a model of ours does, and their names for its tensors.

Rotary angles, grouped queries and SwiGLU are Llama's own conventions here, so tensors go over as they are. Other
mixers and chains of MLPs have no class in the library: theirs is written along with them (`export/remote`).
"""

import re
from dataclasses import dataclass

from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import build_units

_LAYER_NAMES = {
    "mixer.norm.weight": "input_layernorm.weight",
    "mixer.q.weight": "self_attn.q_proj.weight",
    "mixer.k.weight": "self_attn.k_proj.weight",
    "mixer.v.weight": "self_attn.v_proj.weight",
    "mixer.o.weight": "self_attn.o_proj.weight",
    "mlp.norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
_HEAD_NORMS = {
    "mixer.q_norm.weight": "self_attn.q_norm.weight",
    "mixer.k_norm.weight": "self_attn.k_norm.weight",
}
_OUTER_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.output.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class Family:
    """`model_type` of config.json, and what its classes' names start with."""

    model_type: str
    prefix: str

    @property
    def causal_lm(self) -> str:
        return f"{self.prefix}ForCausalLM"


LLAMA = Family("llama", "Llama")
QWEN3 = Family("qwen3", "Qwen3")  # Llama whose heads' queries and keys are normalised
OWN = Family("megatron_tlm", "Tlm")

_PROJECTION = re.compile(r"\.(q|k|v|o|z|gate|up|down)\.weight$")


def family_of(shape: ModelShape) -> Family:
    """The library's family where it has one, else our own."""
    if own_parts(shape):
        return OWN
    return QWEN3 if shape.qk_norm else LLAMA


def own_parts(shape: ModelShape) -> str:
    """What of a model no class of another program computes, as `mixer = titans_lmm, cms_levels = 3`; often nothing."""
    parts = [f"mixer = {shape.mixer}"] if shape.mixer != "attention" else []
    return ", ".join(parts + ([f"cms_levels = {shape.cms_levels}"] if shape.cms_levels > 1 else []))


def tensor_names(shape: ModelShape) -> dict[str, str]:
    """Our global name -> the library's, in the order of the layers."""
    if family_of(shape) == OWN:
        return {spec.name: _own_name(spec.name) for unit in build_units(shape) for spec in unit.parameters}
    per_layer = _LAYER_NAMES | (_HEAD_NORMS if shape.qk_norm else {})
    names = {"embedding.weight": _OUTER_NAMES["embedding.weight"]}
    for layer in range(shape.num_layers):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in per_layer.items()}
    names["head.norm.weight"] = _OUTER_NAMES["head.norm.weight"]
    if not shape.tied_embeddings:
        names["head.output.weight"] = _OUTER_NAMES["head.output.weight"]
    return names


def _own_name(ours: str) -> str:
    """layers.0.mlp.gate.weight -> model.layers.0.mlp.0.gate_proj.weight; an attention gate is g_proj."""
    if ours in _OUTER_NAMES:
        return _OUTER_NAMES[ours]
    name = _PROJECTION.sub(r".\1_proj.weight", re.sub(r"\.mlp\.(?!\d)", ".mlp.0.", ours))
    return "model." + name.replace("mixer.gate_proj", "mixer.g_proj")
