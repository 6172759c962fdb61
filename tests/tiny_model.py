"""Tiny plans, and global tensors cut into ranks' shares and put together again, for tests of layers and models."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megatron_tlm.config.architecture import ArchitectureConfig
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TaperConfig
from megatron_tlm.plan.build import Plan, build_plan

VOCABULARY = 53  # prime: no degree divides it, and the last of four ranks holds padding only where 8 rows are a share
SEQUENCE = 8


def tiny_plan(
    *,
    tensor: int = 1,
    pipe: int = 1,
    sequence_parallel: bool = False,
    query_groups: int = 2,
    tied: bool = True,
    vocab_divisible_by: int = 16,
    num_layers: int = 2,
    schedule: str = "cosine",
    seq_length: int = SEQUENCE,
    kv_channels: int = 4,
    **architecture: Any,
) -> Plan:
    """8 heads of width 4, D = 24 (so that D differs from N H), widths 48 -> 16 unless uniform.

    `architecture` are fields of that section; widths are not matched, memories are small.
    """
    small = {"match_params": False, "memory_chunk_size": 3, "memory_persistent_tokens": 3, "memory_expansion": 2}
    return build_plan(
        Config(
            ModelConfig(
                num_layers=num_layers,
                hidden_size=24,
                num_attention_heads=8,
                num_query_groups=query_groups,
                kv_channels=kv_channels,
                seq_length=seq_length,
                ffn_hidden_size=32,
                make_vocab_size_divisible_by=vocab_divisible_by,
                untie_embeddings_and_output_weights=not tied,
            ),
            architecture=ArchitectureConfig(**(small | architecture)),
            taper=TaperConfig(taper_schedule=schedule, width_multiple=16 if not architecture.get("cms_levels") else 4),  # type: ignore[arg-type]
            parallel=ParallelConfig(
                tensor_model_parallel_size=tensor,
                pipeline_model_parallel_size=pipe,
                sequence_parallel=sequence_parallel,
            ),
        ),
        VOCABULARY,
    )


def random_weights(plan: Plan, seed: int = 0) -> dict[str, Tensor]:
    """Every parameter of the model, whole, in float64, none of them near its initial value."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(spec.shape, generator=generator, dtype=torch.float64) * 0.3 + (len(spec.shape) == 1)
        for name, spec in plan.parameter_specs.items()
    }


def random_tokens(batch: int = 2, length: int = SEQUENCE, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def set_weights(parameters: Mapping[str, Tensor], whole: Mapping[str, Tensor], plan: Plan, tensor_rank: int) -> None:
    """Fill one rank's parameters with its shares of whole tensors."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            share = plan.shard(plan.parameter_specs[name], tensor_rank)
            box = tuple(slice(start, start + size) for start, size in zip(share.offset, share.size, strict=True))
            parameter.zero_()
            parameter[tuple(slice(size) for size in share.size)] = whole[name][box].to(parameter.dtype)


def assemble(shares: Sequence[Mapping[str, Tensor]], plan: Plan) -> dict[str, Tensor]:
    """Ranks' tensors by global name -> whole ones; copies must agree, and padding must be zero."""
    whole = {}
    for name in shares[0]:
        spec = plan.parameter_specs[name]
        total = torch.full(spec.shape, torch.nan, dtype=shares[0][name].dtype)
        for rank, tensors in enumerate(shares):
            share = plan.shard(spec, rank)
            box = tuple(slice(start, start + size) for start, size in zip(share.offset, share.size, strict=True))
            piece = tensors[name][tuple(slice(size) for size in share.size)]
            if spec.split_at(plan.grid.tensor) is None and rank > 0:
                torch.testing.assert_close(piece, total[box], rtol=0, atol=0, msg=f"{name} differs on rank {rank}")
            total[box] = piece
            assert tensors[name].numel() == piece.numel() or not tensors[name][share.size[0] :].any(), name
        assert not total.isnan().any(), name
        whole[name] = total
    return whole


def assert_same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-12) -> None:
    """The same names, and values equal to `tolerance`, relative and absolute."""
    assert set(actual) == set(expected)
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
