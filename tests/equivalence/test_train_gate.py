"""A step whose update is dropped leaves a run as if its batch had never been there, under every engine."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.config.schema import Config
from megatron_tlm.model.stage import Stage
from megatron_tlm.train.engines.gate import accept, refuse
from megatron_tlm.train.survival.locate import Location, locate
from tests.equivalence.training import LEARNING_RATES, batches, engine_on, gather_tensors, show, tiny
from tests.ranks import run_ranks

ZERO, TENSOR, PIPE = "zero_stage", "tensor_model_parallel_size", "pipeline_model_parallel_size"
LEVELS = {"cms_levels": 2, "cms_periods": (1, 2)}

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {ZERO: 0, **LEVELS}),
    (2, {ZERO: 1, **LEVELS}),
    (2, {ZERO: 2, **LEVELS}),
    (2, {ZERO: 3, **LEVELS}),
    (2, {ZERO: 1, "bf16": True}),
    (2, {ZERO: 2, "bf16": True}),
    (2, {ZERO: 3, "bf16": True}),
    (2, {PIPE: 2, ZERO: 0, **LEVELS}),
    (4, {PIPE: 2, TENSOR: 2, ZERO: 1, **LEVELS}),
    (2, {PIPE: 2, ZERO: 1, "bf16": True}),
]

State = dict[tuple[str, str], Tensor]


def state_after(rank: int, config: Config, world: int, steps: list[int], dropped: list[int]) -> tuple[State, list[int]]:
    """Takes `steps` (a batch and a rate each) and tells the state, and which of them were not applied."""
    refused = []
    with engine_on(config, world) as (engine, plan, mesh):
        for step in steps:
            data = batches(config, step, mesh.data.rank, mesh.data.size)
            result = engine.train_step(data, LEARNING_RATES[step], refuse if step in dropped else accept)
            if not result.applied:
                refused.append(step)
                assert result.levels == ()
                assert 0 < result.loss < 10
                assert 0 < result.grad_norm < 10
        return gather_tensors(engine, plan, mesh, config.parallel.zero_stage), refused


def assert_same(mine: State, theirs: State) -> None:
    assert mine.keys() == theirs.keys()
    for key, values in theirs.items():
        assert torch.equal(mine[key], values), key


@pytest.mark.parametrize(("ranks", "changes"), LAYOUTS, ids=show)
def test_a_dropped_update_leaves_no_trace(ranks: int, changes: dict[str, Any]) -> None:
    config = tiny(**changes)
    # The first step of all, when there are no moments yet, and one in the midst of a level's window.
    with_gaps = run_ranks(ranks, state_after, config, ranks, [0, 1, 2, 3, 4], [0, 2])
    without = run_ranks(ranks, state_after, config, ranks, [1, 3, 4], [])
    for (mine, refused), (theirs, none) in zip(with_gaps, without, strict=True):
        assert (refused, none) == ([0, 2], [])
        assert_same(mine, theirs)


def broken_step(rank: int, config: Config, world: int) -> tuple[State, State, list[bool], Location, Location]:
    """A batch that makes layer 1's MLP give infinities, between good ones; the state before and after it."""
    with engine_on(config, world) as (engine, plan, mesh):
        zero = config.parallel.zero_stage

        def take(step: int) -> bool:
            data = batches(config, step, mesh.data.rank, mesh.data.size)
            return engine.train_step(data, LEARNING_RATES[step]).applied

        applied = [take(0), take(1)]
        before = gather_tensors(engine, plan, mesh, zero)
        stage = next(module for module in engine.deepspeed.module.modules() if isinstance(module, Stage))
        blocks = {unit.name: block for unit, block in zip(stage.units, stage.blocks, strict=True)}
        at = blocks.get("layers.1.mlp")
        breaking = at.register_forward_hook(lambda module, given, output: output * torch.inf) if at else None
        applied.append(take(2))
        found = locate(engine, mesh, lambda: take(2))
        if breaking is not None:
            breaking.remove()
        after = gather_tensors(engine, plan, mesh, zero)
        nothing = locate(
            engine,
            mesh,
            lambda: engine.train_step(batches(config, 2, mesh.data.rank, mesh.data.size), LEARNING_RATES[2], refuse),
        )
        applied.append(take(3))
        return before, after, applied, found, nothing


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {ZERO: 0}),
        (2, {ZERO: 1}),
        (2, {ZERO: 2, "bf16": True}),
        (2, {ZERO: 3}),
        (2, {ZERO: 1, "bf16": True, TENSOR: 2}),
        (2, {PIPE: 2, ZERO: 0}),
        (4, {PIPE: 2, ZERO: 1, TENSOR: 2}),
    ],
    ids=show,
)
def test_a_gradient_that_is_no_number_is_dropped_by_itself_and_its_place_is_found(
    ranks: int, changes: dict[str, Any]
) -> None:
    config = tiny(**changes)
    for before, after, applied, found, nothing in run_ranks(ranks, broken_step, config, ranks):
        assert applied == [True, True, False, True]
        assert_same(after, before)
        assert found.unit == "layers.1.mlp"
        assert found.parameter == "embedding.weight"
        assert (nothing.unit, nothing.parameter) == (None, None)
        assert "look for a fault of a machine" in str(nothing)
