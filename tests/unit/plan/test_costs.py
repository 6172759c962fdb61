from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.model.units import build_unit
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.costs import tensor_traffic, unit_work

MODEL = ModelConfig(
    num_layers=3,
    hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    seq_length=32,
    ffn_hidden_size=128,
    untie_embeddings_and_output_weights=True,
)


def plan_with(**parallel):
    config = Config(model=MODEL, parallel=ParallelConfig(**parallel), training=TrainingConfig(micro_batch_size=2))
    return build_plan(config, 1000)


def test_flops_are_those_of_torchs_counter():
    plan = plan_with()
    tokens = plan.workload.tokens
    for unit, cost in zip(plan.units, plan.costs, strict=True):
        module = build_unit(unit, plan, AxisGroup.single(), torch.float32, torch.device("cpu"))
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        given = torch.randn(2, 32, 64, requires_grad=True)
        if unit.kind == "embedding":
            given = torch.zeros(2, 32, dtype=torch.int64)
        # The math kernel is the one whose products the counter sees in both directions.
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            out = module(given)
            forward = counter.get_total_flops()
            out.sum().backward()
        assert forward == cost.forward_flops * tokens
        assert counter.get_total_flops() == cost.flops * tokens


def test_parameters_are_those_of_the_built_model():
    plan = plan_with()
    for unit, cost in zip(plan.units, plan.costs, strict=True):
        module = build_unit(unit, plan, AxisGroup.single(), torch.float32, torch.device("cpu"))
        padding = (plan.padded_vocab_size - 1000) * 64 if unit.kind in ("embedding", "head") else 0
        held = sum(parameter.numel() for parameter in module.parameters())
        assert held == cost.parameters + padding == plan.setting.local_parameters(unit)


def test_work_leaves_out_what_a_causal_kernel_skips_and_repeats_what_is_recomputed():
    plan = plan_with()
    mixer, mlp, head = plan.units[1], plan.units[2], plan.units[-1]
    work = {
        again: [unit_work(unit, plan.shape, replace(plan.workload, recompute=again)) for unit in (mixer, mlp, head)]
        for again in (None, "selective", "full")
    }
    products, core = 2 * 64 * (2 * 64 + 2 * 32), 2 * 33 * 64
    assert [work[None][0].forward, work[None][0].backward] == [products + core, 2 * products + 5 * core // 2]
    assert work["selective"][0].backward == work[None][0].backward + core
    assert work["full"][0].backward == work[None][0].backward + products + core
    assert work["full"][1].backward == 3 * work[None][1].forward
    assert work["full"][2] == work[None][2]


def test_tensor_ranks_share_the_work_and_pay_in_traffic():
    alone, shared = plan_with(), plan_with(tensor_model_parallel_size=4)
    for unit in alone.units:
        one, four = (unit_work(unit, plan.shape, plan.workload) for plan in (alone, shared))
        if unit.kind == "mixer":
            # Two key/value heads on four ranks: each is computed twice.
            assert 4 * four.forward == one.forward + 4 * 2 * 64 * 2 * 16 // 2
        elif unit.kind == "mlp":
            assert 4 * four.forward == one.forward
        assert tensor_traffic(unit, alone.shape, alone.workload) == 0
    stream = 2 * 32 * 64 * 4
    assert tensor_traffic(shared.units[1], shared.shape, shared.workload) == 2 * (2 * stream * 3 // 4)
    full = replace(shared.workload, recompute="full")
    assert tensor_traffic(shared.units[1], shared.shape, full) == 3 * (2 * stream * 3 // 4)


@pytest.mark.parametrize("seq_length", [32, 64])
def test_attention_grows_with_the_sequence(seq_length):
    plan = build_plan(Config(model=replace(MODEL, seq_length=seq_length)), 1000)
    assert plan.costs[1].forward_flops == 2 * 64 * (2 * 64 + 2 * 32) + 4 * seq_length * 64
