"""The parameter table: every tensor of the model by global name, global shape and the dim it is split along."""

from dataclasses import dataclass, replace
from typing import Literal

from megatron_tlm.plan.shape import ModelShape

InitialValue = Literal["normal", "output", "ones", "constant", "gaussian", "uniform"]


@dataclass(frozen=True)
class ParameterSpec:
    """One tensor of the model, whatever the layout.

    `split_dim` is cut into `parts` indivisible pieces (heads, columns, vocabulary rows), which the tensor ranks share
    evenly; None is replicated. A `replicable` tensor (keys and values of few heads) is replicated whole once there
    are more ranks than parts. `init` "output" is "normal" over the root of the number of residual branches (2 L):
    what writes into the residual stream. `init_scale` is the value of a "constant", the standard deviation of a
    "gaussian", the bound of a "uniform" one. `level` is that of a continuum memory, 0 for everything else: parameters
    of one level are updated together, perhaps not at every step (`train.optimizer`).
    """

    name: str
    shape: tuple[int, ...]
    split_dim: int | None = None
    parts: int = 1
    replicable: bool = False
    padded: bool = False
    init: InitialValue = "normal"
    init_scale: float = 1.0
    decay: bool = True
    level: int = 0

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


def mlp_parameters(shape: ModelShape, layer: int, level: int | None = None) -> tuple[ParameterSpec, ...]:
    """SwiGLU of this layer's own width F: gate and up [F, D], down [D, F]; or one level of a continuum memory."""
    prefix, width, inner = f"layers.{layer}.mlp", shape.hidden_size, shape.widths[layer]
    if level is not None:
        prefix, inner = f"{prefix}.{level}", shape.level_width(layer, level)
    specs = (
        norm_parameter(f"{prefix}.norm.weight", width),
        ParameterSpec(f"{prefix}.gate.weight", (inner, width), split_dim=0, parts=inner),
        ParameterSpec(f"{prefix}.up.weight", (inner, width), split_dim=0, parts=inner),
        ParameterSpec(f"{prefix}.down.weight", (width, inner), split_dim=1, parts=inner, init="output"),
    )
    return tuple(replace(spec, level=(level or 0) + 1) for spec in specs) if level is not None else specs


def head_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """The last norm and, unless it is the embedding's, the output weight [V, D]."""
    norm = norm_parameter("head.norm.weight", shape.hidden_size)
    if shape.tied_embeddings:
        return (norm,)
    rows = (shape.vocab_size, shape.hidden_size)
    return (norm, ParameterSpec("head.output.weight", rows, split_dim=0, parts=shape.vocab_size, padded=True))
