"""Checkpoints of small models with random weights, saved as one part, for tests of what others make of them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.config.architecture import ArchitectureConfig
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, DataConfig, ModelConfig, TaperConfig
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan, build_plan
from tests.tiny_model import random_weights, set_weights

VOCAB = 101


def small_config(
    *, schedule: str = "cosine", tied: bool = False, multiple: int = 32, tokenizer_type: str | None = None, **arch: Any
) -> Config:
    """Four layers of baseline width 128: 192, 160, 96, 64 when tapered; grouped queries, an odd rotary base."""
    return Config(
        ModelConfig(
            num_layers=4,
            hidden_size=48,
            num_attention_heads=6,
            num_query_groups=2,
            kv_channels=8,
            seq_length=32,
            ffn_hidden_size=128,
            rotary_base=50000.0,
            norm_epsilon=1e-6,
            untie_embeddings_and_output_weights=not tied,
        ),
        architecture=ArchitectureConfig(**{"match_params": False, **arch}),
        taper=TaperConfig(taper_schedule=schedule, width_multiple=multiple),  # type: ignore[arg-type]
        data=DataConfig(tokenizer_type=tokenizer_type),  # type: ignore[arg-type]
    )


def save_model(
    root: Path,
    config: Config,
    *,
    vocab: int = VOCAB,
    dtype: torch.dtype = torch.float32,
    tokenizer: Path | None = None,
    roles: tuple[str, ...] = ("weight",),
) -> tuple[Path, Stage, Plan]:
    """A checkpoint of step 7 and the model that it holds."""
    plan = build_plan(config, vocab)
    weights = {name: (weight * 0.3).to(dtype) for name, weight in random_weights(plan).items()}
    stage = Stage(plan)
    set_weights(stage.global_parameters(), weights, plan, 0)
    partial = begin(root, 7)
    pieces = [_whole(name, role, weight) for name, weight in weights.items() for role in roles]
    write_part(partial, 0, pieces)
    facts = Facts(7, 70, 2240, 7, plan.shape, as_mapping(config), plan.grid, 1, plan.stages)
    return commit(partial, facts, parts=1, tokenizer=tokenizer), stage.eval(), plan


def _whole(name: str, role: str, weight: Tensor) -> Piece:
    shape = tuple(weight.shape)
    return Piece(name, role, shape, (0,) * len(shape), shape, weight.dtype, lambda: weight)


@torch.no_grad()
def logits_of(stage: Stage, plan: Plan, tokens: Tensor) -> Tensor:
    logits: Tensor = stage(tokens)[..., : plan.shape.vocab_size]
    return logits


def tokens(batch: int = 2, length: int = 17, vocab: int = VOCAB) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(4))
