"""Checkpoints made for tests: any shape, any pieces, values that tell where they belong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from megatron_tlm.checkpoint import relayout
from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.load import find
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.checkpoint.tiling import Box
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import build_units

ROLES = {"weight": torch.bfloat16, "master": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}


def model_shape(
    *, tied: bool = False, vocab: int = 37, widths: Sequence[int] = (24, 16, 8), hidden: int = 8
) -> ModelShape:
    return ModelShape(
        num_layers=len(widths),
        hidden_size=hidden,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=2,
        vocab_size=vocab,
        widths=tuple(widths),
        tied_embeddings=tied,
        rotary_base=10000.0,
        norm_epsilon=1e-5,
    )


def facts(shape: ModelShape, *, step: int = 10, grid: Grid | None = None) -> Facts:
    grid = grid or Grid()
    units = 2 * shape.num_layers + 2
    return Facts(
        step=step,
        consumed_samples=8 * step,
        consumed_tokens=512 * step,
        optimizer_steps=step - 1,
        shape=shape,
        config={
            "model": {"seq_length": 64, "make_vocab_size_divisible_by": 8},
            "parallel": {"tensor_model_parallel_size": grid.tensor, "pipeline_model_parallel_size": grid.pipe},
        },
        grid=grid,
        zero_stage=1,
        stages=even_stages(units, grid.pipe),
        extra={"skipped_steps": 1, "loss_scale": 65536.0},
    )


def even_stages(units: int, pipe: int) -> tuple[range, ...]:
    """As many units on each stage: what a cut is worth is the planner's matter."""
    return tuple(range(units * stage // pipe, units * (stage + 1) // pipe) for stage in range(pipe))


def convert(source: Path, target: Path, *, tensor: int, pipe: int, step: int | None = None, **options: Any) -> Path:
    """A conversion into even stages."""
    shape = read_manifest(find(source, step, hashes=False)).facts.shape
    stages = even_stages(shape.num_units, pipe)
    return relayout.convert(source, target, tensor=tensor, pipe=pipe, stages=stages, step=step, **options)


def values(shape: ModelShape, roles: Mapping[str, torch.dtype] = ROLES) -> dict[tuple[str, str], torch.Tensor]:
    """Every tensor of the model in every role, from a generator of its own."""
    made = {}
    for unit in build_units(shape):
        for spec in unit.parameters:
            for role, dtype in roles.items():
                generator = torch.Generator().manual_seed(crc32(f"{role}/{spec.name}".encode()))
                made[spec.name, role] = torch.randn(spec.shape, generator=generator).to(dtype)
    return made


def piece(name: str, role: str, tensor: torch.Tensor, box: Box) -> Piece:
    offset, size = box
    inside = tuple(slice(start, start + extent) for start, extent in zip(offset, size, strict=True))
    return Piece(name, role, tuple(tensor.shape), offset, size, tensor.dtype, lambda: tensor[inside])


def whole(tensor: torch.Tensor) -> Box:
    return (0,) * tensor.dim(), tuple(tensor.shape)


def save(
    root: Path,
    tensors: Mapping[tuple[str, str], torch.Tensor],
    about: Facts,
    *,
    boxes: Mapping[tuple[str, str], Sequence[tuple[int, Box]]] | None = None,
    parts: int = 2,
    tokenizer: Path | None = None,
) -> Path:
    """One checkpoint; `boxes` says for each tensor which part holds what, by default they take turns with wholes."""
    partial = begin(root, about.step)
    held: list[list[Piece]] = [[] for _ in range(parts)]
    for index, (key, tensor) in enumerate(tensors.items()):
        for part, box in (boxes or {}).get(key, [(index % parts, whole(tensor))]):
            held[part].append(piece(*key, tensor, box))
    for number, pieces in enumerate(held):
        write_part(partial, number, pieces)
    return commit(partial, about, parts=parts, tokenizer=tokenizer)


def flip(path: Path) -> None:
    """One bit of the last byte: the length stays, and in a part of tensors so does the header."""
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


def row_halves(tensors: Mapping[tuple[str, str], torch.Tensor]) -> dict[tuple[str, str], list[tuple[int, Box]]]:
    """Every tensor cut in two along dim 0, a half to each of two parts."""
    cut = {}
    for key, tensor in tensors.items():
        rows, rest = tensor.shape[0], tuple(tensor.shape[1:])
        zeros = (0,) * len(rest)
        cut[key] = [(0, ((0, *zeros), (rows // 2, *rest))), (1, ((rows // 2, *zeros), (rows - rows // 2, *rest)))]
    return cut
