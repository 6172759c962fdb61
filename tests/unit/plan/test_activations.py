import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.activations import kept_bytes, working_bytes
from megatron_tlm.plan.build import build_plan

sys.path.insert(0, str(Path(__file__).parent))
from measured import UnitRun, peak_bytes, saved_bytes

MODEL = ModelConfig(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    seq_length=128,
    ffn_hidden_size=256,
    untie_embeddings_and_output_weights=True,
)
UNITS = {"embedding": 0, "mixer": 1, "mlp": 2, "head": -1}


def config(recompute=None, bf16=False, **model):
    return Config(
        model=replace(MODEL, **model),
        parallel=ParallelConfig(recompute_granularity=recompute),
        training=TrainingConfig(micro_batch_size=4, bf16=bf16),
    )


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("recompute", [None, "selective", "full"])
@pytest.mark.parametrize("kind", UNITS)
def test_kept_bytes_are_what_autograd_saves(kind, recompute, bf16):
    asked = config(recompute, bf16)
    plan = build_plan(asked, 1000)
    run = UnitRun(plan, UNITS[kind] % len(plan.units), asked)
    predicted = kept_bytes(run.unit, plan.shape, plan.workload)
    assert saved_bytes(run) == predicted


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize(
    ("recompute", "model"), [(None, {}), ("full", {"num_query_groups": 4, "hidden_size": 128}), ("selective", {})]
)
def test_peak_of_a_unit_is_within_a_tenth(kind, recompute, model):
    # In float32: this CPU's bfloat16 products and attention make buffers of their own, which a GPU does not have.
    asked = config(recompute, seq_length=256, **model)
    plan = build_plan(asked, 1000)
    run = UnitRun(plan, UNITS[kind] % len(plan.units), asked)
    run.forward_backward()
    measured = peak_bytes(run.forward_backward)
    # The input and the gradient that comes in are the neighbours': there before, so the allocator did not see them.
    stream = run.h.untyped_storage().nbytes()
    given = {"embedding": 0, "head": stream}.get(kind, 2 * stream)
    predicted = kept_bytes(run.unit, plan.shape, plan.workload) + working_bytes(run.unit, plan.shape, plan.workload)
    assert measured + given == pytest.approx(predicted, rel=0.1)


def test_tensor_and_sequence_parallelism_share_what_they_share():
    plan = build_plan(config(), 1000)
    alone = plan.workload
    shared, sequence = replace(alone, tensor_degree=2), replace(alone, tensor_degree=2, sequence_parallel=True)
    mlp = plan.units[2]
    kept = [kept_bytes(mlp, plan.shape, workload) / alone.tokens for workload in (alone, shared, sequence)]
    inner = 3 * mlp.width * 4
    assert kept == [64 * 4 * 2 + 4 + inner, 64 * 4 * 2 + 4 + inner / 2, (64 * 4 + 4) / 2 + 64 * 4 + inner / 2]
