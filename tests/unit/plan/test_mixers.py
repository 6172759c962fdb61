"""What the planner says of each mixer is what its module does: parameters, FLOPs by torch's counter, bytes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.architecture import ArchitectureConfig
from megatron_tlm.config.document import read_preset, read_text
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config, ModelConfig, TrainingConfig
from megatron_tlm.model.units import build_unit
from megatron_tlm.plan.activations import kept_bytes, working_bytes
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.costs import forward_flops
from megatron_tlm.plan.hardware import find_hardware
from megatron_tlm.plan.setting import TICKS_PER_SECOND
from tests.tiny_model import tiny_plan

sys.path.insert(0, str(Path(__file__).parent))
from measured import UnitRun, peak_bytes, saved_bytes

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "attention": {"qk_norm": True},
    "gated": {"mixer": "gated_attention"},
    "headwise": {"mixer": "gated_attention", "attention_gate": "headwise"},
    "hope": {"cms_levels": 3},
    "lmm": {"mixer": "titans_lmm"},
    "lmm-chunk-1": {"mixer": "titans_lmm", "memory_chunk_size": 1, "memory_persistent_tokens": 0},
    "mag": {"mixer": "titans_mag", "attention_window": 64},
    "mag-window": {"mixer": "titans_mag", "attention_window": 5},
}
LENGTH = 15  # and 3 persistent tokens: whole chunks of 3


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_are_the_modules(name: str) -> None:
    plan = tiny_plan(**ARCHITECTURES[name])
    cpu = torch.device("meta")
    for unit in plan.units[1:-1]:
        module = build_unit(unit, plan, AxisGroup.single(), torch.float32, cpu)
        assert unit.num_parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_flops_are_torchs_count(name: str) -> None:
    plan = tiny_plan(seq_length=LENGTH, **ARCHITECTURES[name])
    for unit in plan.units[1:-1]:
        module = build_unit(unit, plan, AxisGroup.single(), torch.float32, torch.device("cpu"))
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        module.requires_grad_(False)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            module(torch.randn(1, LENGTH, plan.shape.hidden_size))
        planned = forward_flops(unit, plan.shape, LENGTH, plan.padded_vocab_size)
        # Persistent tokens are shared out over the others, rounded down to whole FLOPs per token.
        assert 0 <= counter.get_total_flops() - planned * LENGTH < 3 * LENGTH, unit.name


def unit_run(bf16: bool, length: int, architecture: dict[str, Any], **model: int) -> UnitRun:
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 256} | model
    config = Config(
        ModelConfig(seq_length=length, **sizes),  # type: ignore[arg-type]
        architecture=ArchitectureConfig(match_params=False, **architecture),
        training=TrainingConfig(micro_batch_size=2, bf16=bf16),
    )
    return UnitRun(build_plan(config, 1000), 1, config)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["attention", "gated", "headwise"])
def test_gates_and_norms_keep_what_autograd_saves(name: str, bf16: bool) -> None:
    run = unit_run(bf16, 64, ARCHITECTURES[name], num_query_groups=2)
    assert saved_bytes(run) == kept_bytes(run.unit, run.plan.shape, run.plan.workload)


@pytest.mark.parametrize(
    ("length", "architecture", "model"),
    [
        (512, {"mixer": "titans_lmm", "memory_persistent_tokens": 0}, {}),
        (256, {"mixer": "titans_lmm", "memory_chunk_size": 8, "memory_persistent_tokens": 64}, {"hidden_size": 96}),
        (200, {"mixer": "titans_lmm", "memory_chunk_size": 20, "memory_persistent_tokens": 0}, {}),
        (512, {"mixer": "titans_mag", "attention_window": 64}, {}),
    ],
)
def test_peak_of_a_memory_is_within_a_sixth(length: int, architecture: dict[str, Any], model: dict[str, int]) -> None:
    run = unit_run(False, length, architecture, **model)
    run.forward_backward()
    measured = peak_bytes(run.forward_backward) + 2 * run.h.untyped_storage().nbytes()
    shape, workload = run.plan.shape, run.plan.workload
    predicted = kept_bytes(run.unit, shape, workload) + working_bytes(run.unit, shape, workload)
    assert measured == pytest.approx(predicted, rel=1 / 6)


def test_seconds_of_a_memory_are_those_of_launching_its_chunks() -> None:
    """4096 + 128 tokens in chunks of 16: 264 steps, far longer than their arithmetic takes on a large device."""
    config = build([read_preset("440m-titans"), read_text("parallel:\n  pipeline_model_parallel_size: 2\n", "")])
    plan = build_plan(config, 32000)
    setting = replace(plan.setting, hardware=find_hardware("h100"), profile=None)
    mixer = setting.unit_piece(plan.units[1])
    assert mixer.forward == round(264 * 68 * 5e-6 * TICKS_PER_SECOND)
    assert mixer.backward == round(264 * 249 * 5e-6 * TICKS_PER_SECOND)
    larger = replace(setting, shape=replace(plan.shape, memory_chunk_size=64))
    assert larger.unit_piece(plan.units[1]).forward == round(66 * 68 * 5e-6 * TICKS_PER_SECOND)
