"""Every layout as a source and as a target: pieces as the ranks of a run would cut them, ZeRO's flat ranges too.

    source, as ranks saved it --> there, as convert cuts it --> back, in the source's layout
            +--------------------> first, in the source's layout

Every tensor is compared there, and `back` with `first` byte by byte. Layouts that cut the same files stand for each
other as sources, and as targets take turns at ZeRO stages; TLM_SLOW_TESTS=1 lets all meet all, tied and untied.
"""

import os
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.tiling import Box, flat_range_boxes
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.shards import overlap, padded_vocab_size, shard
from megatron_tlm.plan.units import build_units
from tests.unit.checkpoint.made import convert, facts, model_shape, save, values

ROLES = {"weight": torch.bfloat16, "exp_avg": torch.float32}
Layout = tuple[int, int, int, int]
"""Degrees of tensor, pipeline and data, ZeRO stage."""

GRIDS = [grid for grid in product((1, 2, 4), (1, 2, 3), (1, 2)) if grid[0] * grid[1] * grid[2] <= 8]
LAYOUTS: list[Layout] = [(*grid, zero) for grid in GRIDS for zero in range(4) if zero <= 1 or grid[1] == 1]
# ZeRO shards nothing over one rank, and 1 and 2 differ in gradients alone.
CUTS: list[Layout] = [layout for layout in LAYOUTS if layout[3] == 0 or (layout[2] > 1 and layout[3] != 2)]


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


def save_as(root: Path, layout: Layout, tied: bool) -> dict[tuple[str, str], torch.Tensor]:
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


def parts(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("part-*")}


def relay(source: Path, target: Path, layout: Layout) -> Path:
    tensor, pipe, data, zero = layout
    return convert(source, target, tensor=tensor, pipe=pipe, data=data, zero=zero, workers=1)


def meet(root: Path, source: Layout, targets: list[Layout], tied: bool) -> None:
    made = save_as(root / "source", source, tied)
    first = parts(relay(root / "source", root / "first", source))
    for target in targets:
        there = relay(root / "source", root / "there", target)
        with Reader(there) as reader:
            facts = reader.manifest.facts
            assert (facts.grid.tensor, facts.grid.pipe, facts.grid.data, facts.zero_stage) == target
            assert reader.manifest.tensors.keys() == made.keys()
            for key, tensor_made in made.items():
                assert torch.equal(reader.read(*key), tensor_made), f"{key} of {source} in {target}"
        back = relay(root / "there", root / "back", source)
        assert parts(back) == first, f"{source} over {target}"
        shutil.rmtree(root / "there")
        shutil.rmtree(root / "back")


@pytest.mark.parametrize("source", CUTS, ids=str)
def test_any_layout_becomes_any_other_and_comes_back(source: Layout, tmp_path: Path) -> None:
    turn = CUTS.index(source)
    targets = [
        [layout for layout in LAYOUTS if layout[:3] == grid][(turn + place) % (4 if grid[1] == 1 else 2)]
        for place, grid in enumerate(GRIDS)
    ]
    meet(tmp_path, source, targets[::2] if turn % 2 else targets[1::2], tied=turn % 4 < 2)


@pytest.mark.slow
@pytest.mark.skipif("TLM_SLOW_TESTS" not in os.environ, reason="6,480 conversions, minutes; set TLM_SLOW_TESTS=1")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_all_layouts_meet_all(tied: bool, tmp_path: Path) -> None:
    for number, source in enumerate(LAYOUTS):
        meet(tmp_path / str(number), source, LAYOUTS, tied)
        shutil.rmtree(tmp_path / str(number))
