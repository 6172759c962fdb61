"""Every layout as a source and as a target: pieces as the ranks of a run would cut them, ZeRO's flat ranges too."""

from itertools import product
from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.checkpoint.relayout import convert
from megatron_tlm.checkpoint.tiling import Box, flat_range_boxes
from megatron_tlm.checkpoint.verify import verify
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.shards import overlap, padded_vocab_size, shard
from megatron_tlm.plan.units import build_units
from tests.unit.checkpoint.made import facts, model_shape, save, values

ROLES = {"weight": torch.bfloat16, "exp_avg": torch.float32}
LAYOUTS = [
    (tensor, pipe, data, zero)
    for tensor, pipe, data, zero in product((1, 2, 4), (1, 2, 3), (1, 2), range(4))
    if zero <= 1 or pipe == 1
]


def rank_boxes(spec: ParameterSpec, grid: Grid, zero: int, role: str, padded: int) -> list[tuple[int, Box]]:
    """(tensor rank * data + data rank, box) of each piece that a stage's ranks save of one tensor."""
    replicated = spec.split_at(grid.tensor) is None and not spec.padded
    cut_up = zero == 3 or (zero >= 1 and role != "weight")
    found = []
    for tensor_rank in range(1 if replicated else grid.tensor):
        held = shard(spec, grid.tensor, tensor_rank, padded if spec.padded else None)
        elements = torch.Size(held.local_shape).numel()
        share = -(-elements // grid.data) if cut_up else elements
        for data_rank in range(grid.data if cut_up else 1):
            ends = min(data_rank * share, elements), min((data_rank + 1) * share, elements)
            for offset, size in flat_range_boxes(held.local_shape, *ends):
                real = overlap(offset, size, (0,) * len(held.size), held.size)
                if real is not None:
                    start = tuple(a + b for a, b in zip(held.offset, real[0], strict=True))
                    found.append((tensor_rank * grid.data + data_rank, (start, real[1])))
    return found


def save_as(root: Path, layout: tuple[int, int, int, int], tied: bool) -> dict[tuple[str, str], torch.Tensor]:
    tensor, pipe, data, zero = layout
    grid, shape = Grid(tensor=tensor, pipe=pipe, data=data), model_shape(tied=tied, widths=(8, 4))
    about = facts(shape, grid=grid)
    padded = padded_vocab_size(shape.vocab_size, 8, tensor)
    made, boxes = values(shape, ROLES), {}
    for index, unit in enumerate(build_units(shape)):
        stage = next(number for number, units in enumerate(about.stages) if index in units)
        for spec in unit.parameters:
            for role in ROLES:
                pieces = rank_boxes(spec, grid, zero, role, padded)
                boxes[spec.name, role] = [(stage * tensor * data + rank, box) for rank, box in pieces]
    save(root, made, about, boxes=boxes, parts=grid.size)
    return made


@pytest.mark.parametrize("first", range(0, len(LAYOUTS), 8))
def test_any_layout_becomes_any_other(first: int, tmp_path: Path) -> None:
    """Each source meets another target, near for the tied and far for the others; some go back."""
    for index in range(first, first + 8):
        source, root = LAYOUTS[index], tmp_path / f"source-{index}"
        made = save_as(root, source, tied=index % 2 == 0)
        tensor, pipe, data, zero = LAYOUTS[(index + (1 if index % 2 else 17)) % len(LAYOUTS)]
        there, back = tmp_path / f"there-{index}", tmp_path / f"back-{index}"
        target = convert(root, there, tensor=tensor, pipe=pipe, data=data, zero=zero, workers=1)
        with Reader(target) as reader:
            assert reader.manifest.facts.grid == Grid(tensor=tensor, pipe=pipe, data=data)
            assert reader.manifest.facts.zero_stage == zero
            for key, tensor_made in made.items():
                assert torch.equal(reader.read(*key), tensor_made), key
        if index % 3 == 0:
            again = convert(there, back, tensor=source[0], pipe=source[1], data=source[2], zero=source[3], workers=1)
            assert verify(find(root), again, workers=1) == len(made)
