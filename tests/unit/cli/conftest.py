"""A checkpoint of a tiny model that reads bytes, saved by two pipeline stages' worth of parts, and a corpus for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, DataConfig, ModelConfig, ParallelConfig
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.plan.build import build_plan
from tests.tiny_model import random_weights

TEXTS = ("wide below, narrow above", "the total unchanged", "ä€")


def tiny_config(**data: object) -> Config:
    return Config(
        ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=4, seq_length=32, ffn_hidden_size=32),
        parallel=ParallelConfig(pipeline_model_parallel_size=2),
        data=DataConfig(**data),  # type: ignore[arg-type]
    )


def save_tiny(root: Path, config: Config) -> dict[str, torch.Tensor]:
    """A checkpoint of step 10 with random weights, which are returned."""
    plan = build_plan(config, ByteTokenizer.vocab_size)
    weights = {name: weight.float() for name, weight in random_weights(plan).items()}
    partial = begin(root, 10)
    for stage in range(2):
        held = [spec.name for unit in plan.stage_units(stage) for spec in unit.parameters]
        write_part(
            partial,
            stage,
            [
                Piece(name, "weight", tuple(w.shape), (0,) * w.dim(), tuple(w.shape), w.dtype, lambda w=w: w)
                for name, w in weights.items()
                if name in held
            ],
        )
    commit(partial, Facts(10, 80, 2560, 10, plan.shape, as_mapping(config), plan.grid, 1, plan.stages), parts=2)
    return weights


def damage(root: Path) -> None:
    """Another last byte in one part: lengths say nothing of it, hashes do."""
    part = root / "step-00000010" / "part-00001.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    save_tiny(root, tiny_config(tokenizer_type="ByteTokenizer"))
    return root


@pytest.fixture(scope="session")
def long_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, made for sequences of 192 tokens."""
    root, config = tmp_path_factory.mktemp("long"), tiny_config(tokenizer_type="ByteTokenizer")
    save_tiny(root, replace(config, model=replace(config.model, seq_length=192)))
    return root


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 short documents of bytes, each with its end: no `.bin` in the name, as users give it."""
    prefix = tmp_path_factory.mktemp("data") / "corpus_text_document"
    tokenizer = ByteTokenizer()
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        for number in range(60):
            writer.add_document([*tokenizer.encode(TEXTS[number % 3]), tokenizer.eod_id])
    return prefix
