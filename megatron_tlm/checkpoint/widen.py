"""A checkpoint seen with wider MLPs: rows and columns of zeros behind the real ones, in every role.

A neuron whose gate, up and down weights are zero gives silu(0) * 0 = 0, and its gradients are zero too, so the model
computes and learns what it did. Nothing is written: the zeros appear as boxes are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.manifest import Manifest, TensorRecord
from megatron_tlm.checkpoint.tensor_file import DTYPES
from megatron_tlm.checkpoint.tiling import Extent
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import overlap
from megatron_tlm.plan.units import build_units


class TensorSource(Protocol):
    """What tensors are copied from: a `Reader`, or one seen through `Widened`."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def path(self) -> Path: ...

    @property
    def tokenizer(self) -> Path | None: ...

    def record(self, name: str, role: str) -> TensorRecord: ...

    def read(
        self,
        name: str,
        role: str,
        offset: Extent | None = None,
        size: Extent | None = None,
        *,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


class Widened:
    """`reader` with layer l's MLP `widths[l]` wide; CheckpointError where one would become narrower.

    Pieces in the manifest are still those of the narrow tensors: they tell where bytes lie, not what is read.
    """

    def __init__(self, reader: Reader, widths: Sequence[int]) -> None:
        facts = reader.manifest.facts
        for layer, (old, new) in enumerate(zip(facts.shape.widths, widths, strict=True)):
            if new < old:
                raise CheckpointError(
                    f"layers.{layer} width = {old} cannot become {new} without losing weights; give {old} or more"
                )
        self._reader = reader
        shape = replace(facts.shape, widths=tuple(widths))
        config = _with_widths(facts.config, shape) if shape != facts.shape else facts.config
        narrow, wide = shapes_by_name(facts.shape), shapes_by_name(shape)
        tensors = {
            (name, role): replace(record, shape=wide[name]) if record.shape == narrow.get(name) else record
            for (name, role), record in reader.manifest.tensors.items()
        }
        self.manifest: Manifest = replace(
            reader.manifest, facts=replace(facts, shape=shape, config=config), tensors=tensors
        )

    @property
    def path(self) -> Path:
        return self._reader.path

    @property
    def tokenizer(self) -> Path | None:
        return self._reader.tokenizer

    def record(self, name: str, role: str) -> TensorRecord:
        return self.manifest.tensors.get((name, role)) or self._reader.record(name, role)

    def read(
        self,
        name: str,
        role: str,
        offset: Extent | None = None,
        size: Extent | None = None,
        *,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `Reader.read`, zeros where the narrow tensor has nothing."""
        record, narrow = self.record(name, role), self._reader.record(name, role)
        offset = (0,) * len(record.shape) if offset is None else tuple(offset)
        size = tuple(a - b for a, b in zip(record.shape, offset, strict=True)) if size is None else tuple(size)
        if record.shape == narrow.shape:
            return self._reader.read(name, role, offset, size, into=into)
        flat = torch.empty(prod(size), dtype=DTYPES[record.dtype]) if into is None else into[: prod(size)]
        result = flat.zero_().view(size)
        common = overlap(offset, size, (0,) * len(narrow.shape), narrow.shape)
        if common is not None:
            start, extent = common
            inner = tuple(slice(a - b, a - b + n) for a, b, n in zip(start, offset, extent, strict=True))
            result[inner] = self._reader.read(name, role, start, extent)
        return result


def padded_widths(shape: ModelShape, degree: int) -> tuple[int, ...]:
    """Every MLP's width, rounded up to what `degree` tensor ranks can share."""
    if shape.cms_levels > 1 and any(width % degree for _, width in shape.mlp_widths()):
        raise CheckpointError(
            f"cms_levels = {shape.cms_levels} share each layer's width, which padding would share out anew; "
            f"use a tensor degree below {degree} that divides them all"
        )
    return tuple(-(-width // degree) * degree for width in shape.widths)


def shapes_by_name(shape: ModelShape) -> dict[str, Extent]:
    """Global name -> global shape of every parameter."""
    return {spec.name: spec.shape for unit in build_units(shape) for spec in unit.parameters}


def _with_widths(config: Mapping[str, Any], shape: ModelShape) -> dict[str, Any]:
    """The configuration that asks for these widths, where it has a section that can."""
    taper = config.get("taper")
    return (
        {**config, "taper": {**taper, "layer_widths": list(shape.widths)}} if isinstance(taper, dict) else dict(config)
    )
