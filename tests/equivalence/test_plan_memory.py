"""The planner's peak of every rank against what torch's CPU allocator has out in a step of DeepSpeed's engines.

The profiler sees what this thread frees, and gloo's threads hold on to what they send: every collective is given a
moment in which they let go. A step at whose end not all is back was not seen whole and is taken again. Sequence
parallelism gathers in the background and is not measured here.
"""

import gc
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from megatron_tlm.comm.groups import build_mesh
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from tests.ranks import run_ranks

MODEL = ModelConfig(
    num_layers=4,
    hidden_size=128,
    num_attention_heads=4,
    seq_length=256,
    ffn_hidden_size=512,
    untie_embeddings_and_output_weights=True,
)
TINY = replace(MODEL, hidden_size=64, seq_length=64, ffn_hidden_size=192)
VOCABULARY = 1000
LINGER_SECONDS = 0.003
TRIES = 3
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce",
    "reduce_scatter_tensor",
    "send",
    "recv",
)


def batches(config):
    generator = np.random.default_rng(0)
    while True:
        yield generator.integers(0, VOCABULARY, (config.training.micro_batch_size, config.model.seq_length + 1))


def lingering(collective):
    def run(*args, **kwargs):
        result = collective(*args, **kwargs)
        time.sleep(LINGER_SECONDS)
        return result

    return run


def allocated(work):
    """(at the end, at the peak), over what was there at the beginning."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    out = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        out += event.nbytes()
        peak = max(peak, out)
    return out, peak


def storages():
    """Bytes by address of all tensors that there are."""
    found = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    found += [item.grad for item in found if item.is_leaf and item.grad is not None]
    return {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in found}


def measure(rank, config, data):
    from megatron_tlm.train.engines.build import build_engine

    for name in COLLECTIVES:
        setattr(dist, name, lingering(getattr(dist, name)))
    before = storages()
    plan = build_plan(config, VOCABULARY, data=data)
    mesh = build_mesh(plan.grid)
    given, engines = batches(config), []

    def begin():
        engines.append(build_engine(config, plan, mesh))
        for _ in range(2):
            engines[0].train_step(given, 1e-4)
        gc.collect()

    # Of what is freed the profiler knows only the sizes that it saw allocated.
    allocated(begin)
    held = sum(size for address, size in storages().items() if address not in before)
    peaks = []
    # All ranks take every step, whatever each has seen.
    for _ in range(TRIES):
        end, peak = allocated(lambda: engines[0].train_step(given, 1e-4))
        peaks += [peak] if end == 0 else []
    assert peaks, f"in none of {TRIES} steps everything came back"
    return held + peaks[0], plan.memory[mesh.coordinate.pipe].total


CASES = [
    {"pipe": 2},
    {"pipe": 2, "model": TINY},
    {"pipe": 2, "recompute": "full"},
    {"pipe": 2, "zero": 1, "bf16": True, "model": TINY},  # some CPUs are slow at bfloat16
    {"pipe": 2, "tensor": 2},
    {},
    {"model": TINY},
    {"data": 2},
    {"data": 2, "zero": 1},
    {"tensor": 2},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)) or "alone")
def test_every_ranks_peak_is_within_a_tenth(case):
    pipe, tensor, data = (case.get(axis, 1) for axis in ("pipe", "tensor", "data"))
    config = Config(
        model=case.get("model", MODEL),
        parallel=ParallelConfig(
            pipeline_model_parallel_size=pipe,
            tensor_model_parallel_size=tensor,
            zero_stage=case.get("zero", 0),
            recompute_granularity=case.get("recompute"),
        ),
        training=TrainingConfig(micro_batch_size=2, global_batch_size=8 * data, bf16=case.get("bf16", False)),
    )
    for measured, predicted in run_ranks(pipe * tensor * data, measure, config, data, timeout_seconds=180):
        assert predicted == pytest.approx(measured, rel=0.1)
