from dataclasses import replace

import pytest
import torch

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.evaluation.measure_units import MEASURED_WIDTHS, measure_units, measured_units
from megatron_tlm.plan.build import build_plan

MODEL = ModelConfig(num_layers=8, hidden_size=32, num_attention_heads=2, seq_length=16, ffn_hidden_size=192)
CONFIG = Config(model=MODEL)


def test_a_handful_of_widths_the_ends_among_them():
    plan = build_plan(CONFIG, 100)
    chosen = measured_units(plan)
    widths = [unit.width for unit in chosen if unit.kind == "mlp"]
    assert len(widths) == MEASURED_WIDTHS
    assert (widths[0], widths[-1]) == (min(plan.shape.widths), max(plan.shape.widths))
    assert sorted(unit.kind for unit in chosen if unit.kind != "mlp") == ["embedding", "head", "mixer"]


def test_what_was_measured_makes_a_plan_in_seconds():
    plan = build_plan(CONFIG, 100)
    profile = measure_units(CONFIG, plan, torch.device("cpu"), rounds=2)
    assert all(unit.forward > 0 and unit.backward > 0 for unit in profile.units)
    assert profile.update_seconds > 0
    measured = replace(plan, setting=replace(plan.setting, profile=profile))
    assert measured.step_seconds == pytest.approx(
        sum(sum(profile.seconds(unit.kind, unit.width)) for unit in plan.units)
        + profile.update_seconds * plan.parameters,
        rel=0.05,
    )


def test_one_process_has_one_tensor_rank():
    config = Config(model=MODEL, parallel=ParallelConfig(tensor_model_parallel_size=2))
    with pytest.raises(PlanError, match="tensor_model_parallel_size = 2 cannot be measured by 1 process"):
        measure_units(config, build_plan(config, 100), torch.device("cpu"))
