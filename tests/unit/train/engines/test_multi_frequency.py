"""The multi-frequency optimizer equals the list of gradients that it stands for; specification 3.5."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import single_mesh
from megatron_tlm.train.engines.multi_frequency import (
    WINDOW,
    MultiFrequencyAdamW,
    fresh_state,
    level_news,
    level_periods,
)
from megatron_tlm.train.logs.console import level_line
from tests.cms_oracle import History, Rule

RATES = [0.1 - 0.01 * step for step in range(9)]
DECAY = 0.3


def make(periods: tuple[int, ...], update: str = "mean") -> tuple[list[nn.Parameter], MultiFrequencyAdamW]:
    """A parameter without level and one per level."""
    generator = torch.Generator().manual_seed(1)
    parameters = [
        nn.Parameter(torch.randn(7, generator=generator, dtype=torch.float64)) for _ in range(1 + len(periods))
    ]
    groups: list[dict[str, Any]] = [
        {"params": [parameter], "weight_decay": DECAY, "level": level, "period": period, "counted": True}
        for level, (parameter, period) in enumerate(zip(parameters, (1, *periods), strict=True))
    ]
    return parameters, MultiFrequencyAdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8, update=update)  # type: ignore[arg-type]


def gradient(step: int, index: int) -> Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(100 * step + index), dtype=torch.float64)


def run(parameters: list[nn.Parameter], optimizer: MultiFrequencyAdamW, steps: range) -> None:
    for step in steps:
        for index, parameter in enumerate(parameters):
            parameter.grad = gradient(step, index)
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        optimizer.step()


@pytest.mark.parametrize("update", ["mean", "sum"])
@pytest.mark.parametrize("periods", [(1, 1, 1), (1, 2, 3), (2, 4, 5)])
def test_it_equals_the_list_of_all_gradients(periods: tuple[int, ...], update: str) -> None:
    parameters, optimizer = make(periods, update)
    oracles = [
        History(parameter.detach().clone(), Rule(period, DECAY), update)
        for parameter, period in zip(parameters, (1, *periods), strict=True)
    ]
    for step in range(9):
        run(parameters, optimizer, range(step, step + 1))
        for index, (parameter, oracle, period) in enumerate(zip(parameters, oracles, (1, *periods), strict=True)):
            before = oracle.value
            oracle.step(gradient(step, index), RATES[step])
            torch.testing.assert_close(parameter.detach(), oracle.value, rtol=1e-12, atol=1e-13)
            state = optimizer.state[parameter]
            first, second = oracle.moments()
            torch.testing.assert_close(state["exp_avg"], first, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(state["exp_avg_sq"], second, rtol=1e-12, atol=1e-13)
            if period > 1:
                torch.testing.assert_close(state[WINDOW], oracle.window(), rtol=1e-12, atol=1e-13)
                assert torch.equal(before, oracle.value) == bool((step + 1) % period)


@pytest.mark.parametrize("update", ["mean", "sum"])
def test_with_periods_of_one_it_is_torchs_adamw(update: str) -> None:
    parameters, optimizer = make((1, 1), update)
    plain = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    torchs = torch.optim.AdamW(plain, lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY, fused=True)
    for step in range(9):
        run(parameters, optimizer, range(step, step + 1))
        for index, parameter in enumerate(plain):
            parameter.grad = gradient(step, index)
        torchs.param_groups[0]["lr"] = RATES[step]
        torchs.step()
    for ours, theirs in zip(parameters, plain, strict=True):
        assert torch.equal(ours, theirs)


def test_mean_is_adamw_on_accumulated_gradients() -> None:
    parameters, optimizer = make((3,))
    other = nn.Parameter(parameters[1].detach().clone())
    torchs = torch.optim.AdamW([other], lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY, fused=True)
    run(parameters, optimizer, range(9))
    for window in range(3):
        other.grad = (gradient(3 * window, 1) + gradient(3 * window + 1, 1) + gradient(3 * window + 2, 1)) / 3
        torchs.param_groups[0]["lr"] = RATES[3 * window + 2]
        torchs.step()
    assert torch.equal(parameters[1], other)


@pytest.mark.parametrize("update", ["mean", "sum"])
@pytest.mark.parametrize("stop", range(1, 9))
def test_state_filled_in_at_any_phase_continues_the_run(stop: int, update: str) -> None:
    parameters, optimizer = make((2, 3), update)
    run(parameters, optimizer, range(9))
    halves, former = make((2, 3), update)
    run(halves, former, range(stop))
    again, resumed = make((2, 3), update)
    for group, old in zip(resumed.param_groups, halves, strict=True):
        (parameter,) = group["params"]
        parameter.data.copy_(old.data)
        state = fresh_state(parameter, stop, group["period"], update)  # type: ignore[arg-type]
        assert set(state) == set(former.state[old])
        for name, tensor in state.items():
            if name in ("exp_avg", "exp_avg_sq", WINDOW):
                tensor.copy_(former.state[old][name])
            else:
                assert tensor.item() == former.state[old][name].item(), name
        resumed.state[parameter] = state
    run(again, resumed, range(stop, 9))
    for whole, continued in zip(parameters, again, strict=True):
        assert torch.equal(whole, continued)


def test_a_step_that_is_not_taken_does_not_move_the_phase() -> None:
    parameters, optimizer = make((3,))
    others, with_void = make((3,))
    run(parameters, optimizer, range(6))
    run(others, with_void, range(2))
    for parameter in others:
        parameter.grad = torch.full((7,), torch.nan, dtype=torch.float64)  # the trainer drops it: no step is called
    run(others, with_void, range(2, 6))
    for ours, theirs in zip(parameters, others, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("update", ["mean", "sum"])
def test_it_may_be_called_group_by_group(update: str) -> None:
    """As ZeRO does: the count of calls says nothing."""
    parameters, optimizer = make((1, 2, 3), update)
    others, narrowed = make((1, 2, 3), update)
    run(parameters, optimizer, range(9))
    groups = narrowed.param_groups
    for step in range(9):
        for index, parameter in enumerate(others):
            parameter.grad = gradient(step, index)
        for group in groups:
            group["lr"] = RATES[step]
            narrowed.param_groups = [group]
            narrowed.step()
    for ours, theirs in zip(parameters, others, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("update", ["mean", "sum"])
def test_meters_tell_what_moved(update: str) -> None:
    parameters, optimizer = make((1, 3), update)
    for step in range(6):
        before = [parameter.detach().clone() for parameter in parameters]
        run(parameters, optimizer, range(step, step + 1))
        reports = optimizer.meters.read(level_periods((1, 3)), single_mesh(), whole_on_data_ranks=True)
        assert [report.level for report in reports] == [0, 1]
        for report, parameter, old in zip(reports, parameters[1:], before[1:], strict=True):
            index = report.level + 1
            assert report.grad_norm == pytest.approx(float(gradient(step, index).norm()), rel=1e-12)
            assert report.updates == (step + 1) // report.period
            if (step + 1) % report.period:
                assert report.update_ratio is None
            else:
                moved = float((parameter.detach() - old).norm() / parameter.detach().norm())
                assert report.update_ratio == pytest.approx(moved, rel=1e-9)
    assert "2 updates | last update 1.00e-03 of" in level_line(reports[1], 1e-3)
    assert "no update seen yet" in level_line(reports[1], None)


def test_open_windows_at_the_end_are_told() -> None:
    assert level_news((1,), 100) == []
    told = level_news((1, 2, 32), 100)
    assert told[0] == "levels: 3 MLPs per layer, updated every 1, 2, 32 steps"
    assert told[1:] == ["level 2: the gradients of the last 4 of 100 steps fill no window of 32 and are dropped"]
