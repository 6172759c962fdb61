"""A slow rank is seen by its own work, named once it stays slow, and only among ranks that do the same."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from megatron_tlm.comm.collectives import sum_over
from megatron_tlm.comm.groups import Mesh, build_mesh, single_mesh
from megatron_tlm.plan.grid import Grid
from megatron_tlm.train.engines.engine import StepResult
from megatron_tlm.train.logs.straggler import ForwardTimes, StragglerWatch, slowest
from megatron_tlm.train.logs.watch import Moment
from tests.ranks import run_ranks


class Sleeper(nn.Module):
    """Takes `seconds` a pass, then waits for its tensor ranks."""

    def __init__(self, seconds: float, mesh: Mesh) -> None:
        super().__init__()
        self.seconds, self.mesh = seconds, mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return sum_over(x, self.mesh.tensor)


@dataclass
class Heard:
    said: list[str] = field(default_factory=list)
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: str, step: int, **facts: Any) -> None:
        self.events.append((kind, step, facts))


def watch_of(module: nn.Module, mesh: Mesh, heard: Heard, interval: int = 1, most_named: int = 3) -> StragglerWatch:
    return StragglerWatch(
        module,
        mesh,
        torch.device("cpu"),
        interval=interval,
        threshold=1.5,
        most_named=most_named,
        say=heard.said.append,
        event=heard.event,
    )


def moment(step: int, wait: float = 0.0) -> Moment:
    return Moment(step, StepResult(1.0, 1.0), 1.0, wait)


def three_slow_steps(rank: int) -> tuple[list[dict[str, float]], Heard]:
    mesh = build_mesh(Grid(tensor=2))
    module, heard = Sleeper(0.3 if rank == 1 else 0.05, mesh), Heard()
    watch = watch_of(module, mesh, heard)
    found = []
    for step in range(1, 4):
        module(torch.ones(1))
        found.append(dict(watch.after_step(moment(step, wait=0.5 * rank))))
    watch.close()
    return found, heard


def test_the_rank_that_others_wait_for_is_named_though_all_take_the_same_time() -> None:
    results = run_ranks(2, three_slow_steps)
    assert results[0][0] == results[1][0]
    for found in results[0][0]:
        assert found["straggler-rank"] == 1
        assert 1.5 < found["straggler-ratio"] < 7
        assert found["forward-compute-time-max"] > 0.29
        assert found["data-wait-time-max"] == 0.5
    heard = results[0][1]
    assert len(heard.said) == 2, "not the first time"
    assert heard.said[0].startswith("slower than the median of their stage in forward passes: rank 1 on ")
    [(kind, step, facts)] = heard.events
    assert (kind, step) == ("straggler", 2)
    assert facts["ranks"][0]["rank"] == 1


class Ticks:
    """A clock that a module moves on by its own time."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class Ticking(nn.Module):
    def __init__(self, clock: Ticks) -> None:
        super().__init__()
        self.clock, self.takes = clock, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.takes
        assert self.takes > 0
        return x


def test_an_interval_is_the_mean_of_its_steps_and_evaluations_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticks()
    monkeypatch.setattr("megatron_tlm.train.logs.straggler.WallClock", lambda: clock)
    module, x = Ticking(clock), torch.ones(1)
    watch = watch_of(module, single_mesh(), Heard(), interval=2)
    assert watch.after_step(moment(1)) == {}
    for takes, training in ((2.0, True), (3.0, True), (8.0, False)):
        module.takes = takes
        module.train(training)
        module(x)
    found = watch.after_step(moment(2))
    assert [found[f"forward-compute-time-{kind}"] for kind in ("min", "median", "max")] == [2.5, 2.5, 2.5]
    assert "straggler-rank" not in found
    watch.close()
    assert not module._forward_hooks


def test_a_pass_that_failed_leaves_the_next_one_its_own_begin() -> None:
    clock, x = Ticks(), torch.ones(1)
    module = Ticking(clock)
    times = ForwardTimes(module, single_mesh(), clock)
    module.takes = -5.0
    with pytest.raises(AssertionError):
        module(x)
    module.takes = 1.0
    module(x)
    times.end_step()
    assert times.take() == 1.0


def test_ranks_are_compared_within_their_stage() -> None:
    seconds, stages = [1.0, 1.1, 4.0, 3.0, 3.3, 9.0], [0, 0, 0, 1, 1, 2]
    found = slowest(seconds, stages)
    assert [(slow.rank, round(slow.ratio, 2)) for slow in found] == [(2, 3.64), (4, 1.1), (1, 1.0), (3, 1.0), (0, 0.91)]
    assert slowest([0.0, 0.0], [0, 0]) == []


def test_a_rank_is_told_of_while_it_lasts_and_an_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    mesh = replace(single_mesh(), grid=Grid(data=4))
    monkeypatch.setattr("megatron_tlm.train.logs.straggler.gather_object", lambda host: ["a", "b", "c", "d"])
    watch = watch_of(nn.Identity(), mesh, heard, most_named=1)
    tables = [[1, 1, 1, 9], [1, 1, 8, 9], [1, 1, 8, 9], [1, 1, 1, 1], [1, 1, 1, 9]]
    for step, table in enumerate(tables, start=1):
        monkeypatch.setattr(
            "megatron_tlm.train.logs.straggler.all_reduce_sum", lambda _, table=table: [*map(float, table), 0, 0, 0, 0]
        )
        watch.after_step(moment(step))
    assert [line.split(": ")[1] for line in heard.said] == ["rank 3 on d 9.00 x"] * 2
    assert [(step, facts["ranks"]) for _, step, facts in heard.events] == [
        (2, [{"rank": 3, "host": "d", "ratio": 9.0}])
    ]
