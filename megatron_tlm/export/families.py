"""The Hugging Face model classes that compute what a model of ours does, and their names for its tensors.

Rotary angles, grouped queries and SwiGLU are Llama's own conventions here, so tensors go over as they are.
"""

from dataclasses import dataclass

from megatron_tlm.errors import ExportError
from megatron_tlm.plan.shape import ModelShape

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


def family_of(shape: ModelShape) -> Family:
    """The family of a model; ExportError naming what no class of the library computes."""
    faults = []
    if shape.mixer != "attention":
        faults.append(f"mixer = {shape.mixer}")
    if shape.cms_levels > 1:
        faults.append(f"cms_levels = {shape.cms_levels}")
    if faults:
        raise ExportError(
            f"{', '.join(faults)} = parts that neither transformers nor llama.cpp has a class for; only "
            "attention with one MLP per layer can be exported"
        )
    return QWEN3 if shape.qk_norm else LLAMA


def tensor_names(shape: ModelShape) -> dict[str, str]:
    """Our global name -> the library's, in the order of the layers."""
    per_layer = _LAYER_NAMES | (_HEAD_NORMS if shape.qk_norm else {})
    names = {"embedding.weight": "model.embed_tokens.weight"}
    for layer in range(shape.num_layers):
        names |= {f"layers.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in per_layer.items()}
    names["head.norm.weight"] = "model.norm.weight"
    if not shape.tied_embeddings:
        names["head.output.weight"] = "lm_head.weight"
    return names
