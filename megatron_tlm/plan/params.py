"""The parameter table: every tensor of the model by global name, global shape and the dim it is split along."""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.plan.shape import ModelShape

InitialValue = Literal["normal", "output", "ones"]


@dataclass(frozen=True)
class ParameterSpec:
    """One tensor of the model, whatever the layout.

    `split_dim` is cut into `parts` indivisible pieces (heads, columns, vocabulary rows), which the tensor ranks share
    evenly; None is replicated. A `replicable` tensor (keys and values of few heads) is replicated whole once there
    are more ranks than parts. `init` "output" is "normal" over sqrt(2 L): what writes into the residual stream.
    """

    name: str
    shape: tuple[int, ...]
    split_dim: int | None = None
    parts: int = 1
    replicable: bool = False
    padded: bool = False
    init: InitialValue = "normal"
    decay: bool = True

    @property
    def size(self) -> int:
        """Elements of the whole tensor, padding left out."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    def split_at(self, degree: int) -> int | None:
        """The dim that `degree` tensor ranks really split, None where each holds the whole."""
        return None if degree == 1 or (self.replicable and degree > self.parts) else self.split_dim


def norm_parameter(name: str, width: int) -> ParameterSpec:
    return ParameterSpec(name, (width,), init="ones", decay=False)


def embedding_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    rows = (shape.vocab_size, shape.hidden_size)
    return (ParameterSpec("embedding.weight", rows, split_dim=0, parts=shape.vocab_size, padded=True),)


def mixer_parameters(shape: ModelShape, layer: int) -> tuple[ParameterSpec, ...]:
    """Grouped-query attention: q [N*H, D], k and v [K*H, D], o [D, N*H], split by whole heads."""
    prefix, width = f"layers.{layer}.mixer", shape.hidden_size
    heads, groups = shape.num_attention_heads, shape.num_query_groups
    return (
        norm_parameter(f"{prefix}.norm.weight", width),
        ParameterSpec(f"{prefix}.q.weight", (shape.query_size, width), split_dim=0, parts=heads),
        ParameterSpec(f"{prefix}.k.weight", (shape.key_size, width), split_dim=0, parts=groups, replicable=True),
        ParameterSpec(f"{prefix}.v.weight", (shape.key_size, width), split_dim=0, parts=groups, replicable=True),
        ParameterSpec(f"{prefix}.o.weight", (width, shape.query_size), split_dim=1, parts=heads, init="output"),
    )


def mlp_parameters(shape: ModelShape, layer: int) -> tuple[ParameterSpec, ...]:
    """SwiGLU of this layer's own width F: gate and up [F, D], down [D, F]."""
    prefix, width, inner = f"layers.{layer}.mlp", shape.hidden_size, shape.widths[layer]
    return (
        norm_parameter(f"{prefix}.norm.weight", width),
        ParameterSpec(f"{prefix}.gate.weight", (inner, width), split_dim=0, parts=inner),
        ParameterSpec(f"{prefix}.up.weight", (inner, width), split_dim=0, parts=inner),
        ParameterSpec(f"{prefix}.down.weight", (width, inner), split_dim=1, parts=inner, init="output"),
    )


def head_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """The last norm and, unless it is the embedding's, the output weight [V, D]."""
    norm = norm_parameter("head.norm.weight", shape.hidden_size)
    if shape.tied_embeddings:
        return (norm,)
    rows = (shape.vocab_size, shape.hidden_size)
    return (norm, ParameterSpec("head.output.weight", rows, split_dim=0, parts=shape.vocab_size, padded=True))
