"""A pipeline stage: its units in order. With one stage it is the whole model, an ordinary nn.Module.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, v this rank's share of the padded
vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.layers.packing import Packing
from megatron_tlm.layers.residual import BlockOptions, ResidualBlock
from megatron_tlm.model.units import EVALUATION, Head, build_unit, global_name
from megatron_tlm.plan.build import Plan


@dataclass(frozen=True)
class StageCache:
    """What a stage remembers while decoding, by unit name: each mixer's own kind of cache."""

    blocks: dict[str, Any]
    capacity: int


class Stage(nn.Module):
    """The units of one stage on one tensor rank, uninitialised: see `model.init.init_stage`.

    Tokens [B, S] or h [B, s, D] -> h [B, s, D] or this rank's logits [B, S, v], by what its first and last units are.
    """

    def __init__(
        self,
        plan: Plan,
        stage: int = 0,
        *,
        tensor: AxisGroup | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        options: BlockOptions = EVALUATION,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.tensor = tensor or AxisGroup.single()
        self.units = plan.stage_units(stage)
        # A module's name may not hold a dot, a unit's does: kept in a list, and named through the units.
        self.blocks = nn.ModuleList(
            build_unit(unit, plan, self.tensor, dtype, device or torch.device("cpu"), options) for unit in self.units
        )
        head, embedding = self.blocks[-1], self.blocks[0]
        if plan.shape.tied_embeddings and isinstance(head, Head) and self.units[0].kind == "embedding":
            head.tie(embedding.weight)  # type: ignore[arg-type]

    def forward(
        self,
        x: Tensor,
        cache: StageCache | None = None,
        position: int = 0,
        *,
        last_only: bool = False,
        packing: Packing | None = None,
    ) -> Tensor:
        """`position` is that of the first token, not 0 only where a cache holds those before it.

        `packing` tells the mixers which documents the tokens are of. `last_only` spares the head all positions but the
        last: a long prompt's logits are large and not wanted.
        """
        for unit, block in zip(self.units, self.blocks, strict=True):
            if last_only and unit.kind == "head":
                x = x[:, -1:]
            if cache is not None and unit.name in cache.blocks:
                x = block(x, cache=cache.blocks[unit.name], position=position)
            elif packing is not None and unit.kind == "mixer":
                x = block(x, packing=packing)
            else:
                x = block(x)
        return x

    def global_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by global name, in the order of the units; a tied weight once, as embedding.weight."""
        named = {}
        for unit, block in zip(self.units, self.blocks, strict=True):
            for local_name, parameter in block.named_parameters():
                named[global_name(unit, local_name, self.plan.shape)] = parameter
        return named

    def new_cache(self, batch: int, capacity: int) -> StageCache:
        """Room for `capacity` tokens of `batch` sequences in every mixer."""
        caches = {
            unit.name: block.new_cache(batch, capacity)
            for unit, block in zip(self.units, self.blocks, strict=True)
            if isinstance(block, ResidualBlock)
        }
        return StageCache({name: cache for name, cache in caches.items() if cache is not None}, capacity)
