"""The units of the plan as modules, tensor in and tensor out: what a pipeline stage runs one after the other.

    embedding   tokens [B, S] -> h [B, s, D]        VocabularyEmbedding
    mixer       h -> h                              one of `model.mixers`
    mlp         h -> h                              SwiGLU, the layer's or one level of its continuum memory
    head        h -> this rank's logits [B, S, v]   Head

A unit's parameters are named as in the parameter table: global name = unit name + "." + local name.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, v this rank's share of the padded
vocabulary.
"""

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.embedding import VocabularyEmbedding, VocabularyOutput
from megatron_tlm.layers.mlp import SwiGLU
from megatron_tlm.layers.norm import RMSNorm
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.mixers import build_mixer
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import Unit

EVALUATION = BlockOptions()


class Head(nn.Module):
    """The last norm and the output layer. `output.weight` is the embedding's once tied, its own copy until then."""

    def __init__(self, shape: ModelShape, padded_vocab_size: int, placement: Placement) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.hidden_size, shape.norm_epsilon, placement)
        self.output = VocabularyOutput(padded_vocab_size, shape.hidden_size, placement)

    def tie(self, weight: nn.Parameter) -> None:
        """Use the embedding's parameter [v, D] itself: one tensor, one gradient."""
        self.output.weight = weight

    def forward(self, h_BsD: Tensor) -> Tensor:
        """[B, s, D] -> [B, S, v]."""
        logits_BSv: Tensor = self.output(self.norm(h_BsD))
        return logits_BSv


def block_options(config: Config) -> BlockOptions:
    """The dropout and the recomputation that a configuration asks for."""
    return BlockOptions(
        hidden_dropout=config.model.hidden_dropout,
        attention_dropout=config.model.attention_dropout,
        recompute=config.parallel.recompute_granularity,
        compile_memory=config.architecture.compile_memory,
    )


def build_unit(
    unit: Unit,
    plan: Plan,
    tensor: AxisGroup,
    dtype: torch.dtype,
    device: torch.device,
    options: BlockOptions = EVALUATION,
) -> nn.Module:
    """This tensor rank's share of a unit, uninitialised; PlanError where the plan is for another tensor degree."""
    if tensor.size != plan.grid.tensor:
        raise PlanError(
            f"tensor axis = {tensor.size} ranks differs from the plan's tensor degree {plan.grid.tensor}; "
            "build the mesh of the plan's grid"
        )
    shape = plan.shape
    placement = Placement(tensor, plan.workload.sequence_parallel, dtype, device)
    if unit.kind == "embedding":
        return VocabularyEmbedding(plan.padded_vocab_size, shape.hidden_size, placement)
    if unit.kind == "head":
        return Head(shape, plan.padded_vocab_size, placement)
    if unit.kind == "mixer":
        return build_mixer(shape, placement, options)
    if unit.width is None:
        raise PlanError(f"{unit.name}.width = None where an MLP needs at least 1; build units with build_units(shape)")
    return SwiGLU(shape.hidden_size, unit.width, epsilon=shape.norm_epsilon, placement=placement, options=options)


def global_name(unit: Unit, local_name: str, shape: ModelShape) -> str:
    """The parameter table's name of a unit's parameter; a tied output weight is the embedding's."""
    if unit.kind == "head" and local_name == "output.weight" and shape.tied_embeddings:
        return "embedding.weight"
    return f"{unit.name}.{local_name}"
