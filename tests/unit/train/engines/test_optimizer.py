"""Parameter groups, the choice of an implementation, state before the first step, and clipping."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from megatron_tlm.comm.groups import single_mesh
from megatron_tlm.config.schema import OptimizerConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.params import ParameterSpec, norm_parameter
from megatron_tlm.train.engines import optimizer as room
from megatron_tlm.train.engines.optimizer import (
    apex_fused_adam,
    begin_state,
    build_optimizer,
    clip_gradients,
    parameter_groups,
    set_learning_rate,
)

SPECS = {"w": ParameterSpec("w", (2, 2)), "n": norm_parameter("n", 2)}


def parameters() -> dict[str, nn.Parameter]:
    return {"w": nn.Parameter(torch.arange(4.0).view(2, 2)), "n": nn.Parameter(torch.ones(2))}


def test_norms_are_not_decayed() -> None:
    named = parameters()
    decayed, plain = parameter_groups(named, SPECS, 0.3)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert decayed["params"][0] is named["w"]
    assert plain["params"][0] is named["n"]


@pytest.mark.parametrize(("kept", "kind"), [("w", "undecayed"), ("n", "decayed")])
def test_a_stage_without_one_of_the_groups_is_refused(kept: str, kind: str) -> None:
    with pytest.raises(PlanError, match=rf"stage = 1 parameters, 0 of them {kind}, .* use fewer pipeline stages"):
        parameter_groups({kept: parameters()[kept]}, SPECS, 0.1)


def test_without_a_gpu_torch_steps_fused() -> None:
    made = build_optimizer(parameter_groups(parameters(), SPECS, 0.1), OptimizerConfig(lr=0.5, adam_beta2=0.9))
    assert isinstance(made, torch.optim.AdamW)
    assert made.defaults["fused"]
    assert made.defaults["betas"] == (0.9, 0.9)
    set_learning_rate(made, 0.25)
    assert [group["lr"] for group in made.param_groups] == [0.25, 0.25]


class FakeFusedAdam(torch.optim.SGD):
    """The constructor of apex's, and its habit of counting steps in the group."""

    def __init__(self, groups: Any, *, lr: float, betas: Any, eps: float, adam_w_mode: bool) -> None:
        super().__init__(groups, lr=lr)
        assert adam_w_mode


@pytest.fixture
def nvidia_apex(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and NVIDIA's apex."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: object())
    package, optimizers = ModuleType("apex"), ModuleType("apex.optimizers")
    optimizers.FusedAdam = FakeFusedAdam  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "apex", package)
    monkeypatch.setitem(sys.modules, "apex.optimizers", optimizers)


@pytest.mark.usefixtures("nvidia_apex")
def test_nvidias_apex_steps_where_it_can() -> None:
    assert apex_fused_adam() is FakeFusedAdam
    made = build_optimizer(parameter_groups(parameters(), SPECS, 0.1), OptimizerConfig())
    assert isinstance(made, FakeFusedAdam)
    begin_state(made, [(tensor, 1) for group in made.param_groups for tensor in group["params"]], 7)
    assert [group["step"] for group in made.param_groups] == [7, 7]
    assert all(set(state) == {"exp_avg", "exp_avg_sq"} for state in made.state.values())


@pytest.mark.usefixtures("nvidia_apex")
def test_another_package_called_apex_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None if name == "amp_C" else object())
    assert apex_fused_adam() is None
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: object())
    monkeypatch.delattr(sys.modules["apex.optimizers"], "FusedAdam")
    assert apex_fused_adam() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert apex_fused_adam() is None


def test_state_begun_at_a_step_goes_on_as_if_it_had_been_taken() -> None:
    """Two steps, or a step, its moments carried over by hand, and a step: the same weights."""
    through, carried = parameters(), parameters()
    first = build_optimizer(parameter_groups(through, SPECS, 0.1), OptimizerConfig(lr=0.1))
    gradients = [{name: torch.full_like(value, scale) for name, value in through.items()} for scale in (0.3, -2.0)]
    for name, parameter in through.items():
        parameter.grad = gradients[0][name]
    first.step()
    second = build_optimizer(parameter_groups(carried, SPECS, 0.1), OptimizerConfig(lr=0.1))
    begin_state(second, [(tensor, 1) for tensor in carried.values()], 1)
    for name, parameter in carried.items():
        parameter.data.copy_(through[name])
        for role in ("exp_avg", "exp_avg_sq"):
            second.state[parameter][role].copy_(first.state[through[name]][role])
    for made, named in ((first, through), (second, carried)):
        for name, parameter in named.items():
            parameter.grad = gradients[1][name]
        made.step()
    assert all(torch.equal(through[name], carried[name]) for name in through)


@pytest.mark.parametrize("largest", [0.0, 0.5, 100.0])
def test_clipping_is_torchs_on_one_rank(largest: float) -> None:
    ours, theirs = parameters(), parameters()
    for named in (ours, theirs):
        for name, parameter in named.items():
            parameter.grad = torch.full_like(parameter, 1.5 if name == "w" else -2.0)
    norm = clip_gradients(ours.values(), single_mesh(), largest)
    wanted = torch.nn.utils.clip_grad_norm_(theirs.values(), largest or torch.inf)
    assert norm == pytest.approx(float(wanted), rel=1e-6)
    for name in ours:
        torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-6, atol=0)


def test_a_model_without_gradients_has_norm_zero() -> None:
    assert clip_gradients(parameters().values(), single_mesh(), 1.0) == 0.0
