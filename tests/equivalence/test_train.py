"""Any layout under DeepSpeed = one process of plain torch: losses, gradient norms, weights, moments after five steps.

The reference clips at every step, so that a norm that misses or repeats a parameter moves everything after it.
"""

from functools import cache
from typing import Any

import pytest
import torch

from tests.equivalence.training import (
    GLOBAL_BATCH,
    VOCAB,
    Trained,
    build_plan,
    engine_run,
    gather_tensors,
    plain_run,
    show,
    tiny,
)
from tests.ranks import run_ranks

ZERO = "zero_stage"
TENSOR = "tensor_model_parallel_size"
PIPE = "pipeline_model_parallel_size"
TWO_STAGES = {PIPE: 2}
GRID = {TENSOR: 2, PIPE: 2}
SEQUENCE = {"sequence_parallel": True}
UNTIED = {"untie_embeddings_and_output_weights": True}
UNIFORM = {"taper_schedule": "uniform"}

# (ranks, what the layout changes), each for the tied, tapered model.
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    *((ranks, {ZERO: stage}) for ranks in (1, 2) for stage in (0, 1, 2, 3)),
    (2, {TENSOR: 2}),
    (2, {TENSOR: 2, ZERO: 0, **SEQUENCE}),
    (4, {TENSOR: 4, ZERO: 1}),
    (4, {TENSOR: 4, ZERO: 1, **SEQUENCE}),
    (4, {TENSOR: 2, ZERO: 2, **SEQUENCE}),
    (4, {TENSOR: 2, ZERO: 3}),
    (2, {**TWO_STAGES}),
    (2, {**TWO_STAGES, ZERO: 0}),
    (3, {PIPE: 3}),
    (4, {**TWO_STAGES}),
    (4, {**TWO_STAGES, ZERO: 0}),
    (4, {**GRID}),
    (4, {**GRID, ZERO: 0, **SEQUENCE}),
    (4, {**GRID, ZERO: 1, **SEQUENCE}),
    (2, {**TWO_STAGES, "recompute_granularity": "full"}),
    (2, {TENSOR: 2, "recompute_granularity": "selective", **SEQUENCE}),
    (2, {ZERO: 3, "recompute_granularity": "full"}),
]
# The other models, on the layouts that treat them differently.
OTHERS: list[tuple[int, dict[str, Any]]] = [
    (1, {**UNTIED}),
    (2, {**UNTIED, **TWO_STAGES}),
    (4, {**UNTIED, **GRID}),
    (4, {**UNTIED, **GRID, ZERO: 0}),
    (2, {**UNTIED, ZERO: 3}),
    (2, {**UNIFORM, TENSOR: 2}),
    (2, {**UNIFORM, **TWO_STAGES}),
    (4, {**UNIFORM, **UNTIED, **GRID}),
    (2, {"num_layers": 4, **TWO_STAGES}),
]
MODEL_KEYS = ("untie_embeddings_and_output_weights", "taper_schedule", "num_layers")


@cache
def reference(model: tuple[tuple[str, Any], ...]) -> Trained:
    return plain_run(tiny(**dict(model)))


def model_of(changes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, changes[key]) for key in MODEL_KEYS if key in changes)


def assert_same_run(found: Trained, wanted: Trained) -> None:
    torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=2e-6, atol=0)
    torch.testing.assert_close(found.valid_loss, wanted.valid_loss, rtol=1e-6, atol=0)
    assert set(found.tensors) == set(wanted.tensors)
    for (name, role), tensor in wanted.tensors.items():
        difference = ((found.tensors[name, role] - tensor).abs().max() / tensor.abs().max()).item()
        assert difference <= 5e-6, f"{role} of {name} differs by {difference:.1e} of its largest element"


@pytest.mark.parametrize(("ranks", "changes"), [*LAYOUTS, *OTHERS], ids=show)
def test_a_layout_trains_as_one_process(ranks: int, changes: dict[str, Any]) -> None:
    runs = run_ranks(ranks, engine_run, tiny(**changes), ranks)
    assert all(run.losses == runs[0].losses and run.norms == runs[0].norms for run in runs), "ranks report unlike"
    assert_same_run(runs[0], reference(model_of(changes)))


def test_the_reference_clips_and_learns() -> None:
    run = reference(())
    assert min(run.norms) > 2 * 0.25
    assert run.losses[-1] < run.losses[0]


def test_a_stage_may_end_between_a_mixer_and_its_mlp() -> None:
    plan = build_plan(tiny(**TWO_STAGES), VOCAB)
    assert plan.stage_units(0)[-1].name == "layers.1.mixer"
    assert plan.stage_units(1)[0].name == "layers.1.mlp"


@pytest.mark.parametrize("clip_grad", [0.0, 100.0])
@pytest.mark.parametrize(("ranks", "changes"), [(1, {ZERO: 0}), (2, {ZERO: 1}), (2, {**TWO_STAGES, ZERO: 0})], ids=show)
def test_the_norm_is_reported_where_nothing_is_clipped(ranks: int, changes: dict[str, Any], clip_grad: float) -> None:
    config = tiny(clip_grad=clip_grad, **changes)
    assert_same_run(run_ranks(ranks, engine_run, config, ranks)[0], plain_run(config))


@pytest.mark.parametrize("changes", [{ZERO: 0}, {ZERO: 2}, {**TWO_STAGES}], ids=show)
@pytest.mark.parametrize("micro_batch_size", [2, GLOBAL_BATCH])
def test_the_micro_batch_size_does_not_change_a_run(changes: dict[str, Any], micro_batch_size: int) -> None:
    ranks = 2 if PIPE in changes else 1
    run = run_ranks(ranks, engine_run, tiny(micro_batch_size=micro_batch_size, **changes), ranks)[0]
    assert_same_run(run, reference(()))


@pytest.mark.parametrize(("ranks", "changes"), [(2, {ZERO: 2}), (2, {ZERO: 3}), (4, {**GRID, **SEQUENCE})], ids=show)
def test_bf16_stays_near_float32(ranks: int, changes: dict[str, Any]) -> None:
    run = run_ranks(ranks, engine_run, tiny(bf16=True, **changes), ranks)[0]
    wanted = reference(())
    torch.testing.assert_close(run.losses, wanted.losses, rtol=2e-3, atol=0)
    torch.testing.assert_close(run.norms, wanted.norms, rtol=2e-2, atol=0)
    for (name, role), tensor in run.tensors.items():
        if role == "master":
            assert torch.equal(run.tensors[name, "weight"], tensor.bfloat16().float()), f"{name} is not its master"
    assert {role for _, role in run.tensors} == {"weight", "master", "exp_avg", "exp_avg_sq"}


def tied_ends(rank: int) -> dict[tuple[str, str], torch.Tensor] | None:
    """The tied copy's own state on the last stage, bit by bit that of the first."""
    from megatron_tlm.comm.groups import gather_object
    from megatron_tlm.train.saving.state import state_fragments
    from tests.equivalence.training import LEARNING_RATES, batches, engine_on

    config = tiny(**TWO_STAGES, bf16=True)
    with engine_on(config, 2) as (engine, plan, mesh):
        data = batches(config)
        for rate in LEARNING_RATES:
            engine.train_step(data, rate)
        held = {
            fragment.role: fragment.values.float().numpy().copy()
            for fragment in state_fragments(engine, 1, moments=True)
            if fragment.name == "embedding.weight"
        }
        first, last = gather_object(held)
        assert first.keys() == last.keys()
        for role in first:
            assert (first[role] == last[role]).all(), role
        assert gather_tensors(engine, plan, mesh, 1)
    return None


def test_both_ends_of_a_tied_weight_stay_equal_bit_for_bit() -> None:
    run_ranks(2, tied_ends)
