"""What the planner says of each mixer is what its module does: parameters, FLOPs by torch's counter, bytes."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.model.units import build_unit
from megatron_tlm.plan.costs import forward_flops
from tests.tiny_model import tiny_plan

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
