import math

import torch

from megatron_tlm.model.init import draw_parameter, init_stage
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.params import ParameterSpec
from tests.tiny_model import VOCABULARY, tiny_plan


def draw(name: str = "w", init: str = "normal", seed: int = 1) -> torch.Tensor:
    spec = ParameterSpec(name, (200, 100), init=init)  # type: ignore[arg-type]
    return draw_parameter(spec, seed=seed, std=0.02, num_branches=16)


def test_spreads_are_what_was_asked_for() -> None:
    assert abs(draw().std() / 0.02 - 1) < 0.02
    assert abs(draw(init="output").std() * math.sqrt(16) / 0.02 - 1) < 0.02
    assert draw(init="ones").eq(1).all()


def test_a_tensor_depends_on_seed_and_name_alone() -> None:
    torch.manual_seed(3)
    before = draw()
    torch.manual_seed(4)
    assert torch.equal(before, draw())
    assert not torch.equal(before, draw(name="v"))
    assert not torch.equal(before, draw(seed=2))


def test_padding_rows_are_zero_and_stay_zero() -> None:
    plan = tiny_plan(tied=False)
    stage = Stage(plan)
    init_stage(stage, plan, seed=1)
    weight = stage.global_parameters()["embedding.weight"]
    assert weight.shape[0] > VOCABULARY
    assert not weight[VOCABULARY:].any()
    assert weight[:VOCABULARY].any(dim=1).all()


def test_bfloat16_weights_are_the_rounded_float32_ones() -> None:
    plan = tiny_plan()
    exact, coarse = Stage(plan), Stage(plan, dtype=torch.bfloat16)
    init_stage(exact, plan, seed=1)
    init_stage(coarse, plan, seed=1)
    for name, parameter in exact.global_parameters().items():
        assert torch.equal(parameter.bfloat16(), coarse.global_parameters()[name])
