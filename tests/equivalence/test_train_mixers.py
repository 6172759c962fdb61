"""Every architecture under DeepSpeed, in any layout, trains as one process of plain torch; Hope's levels as the oracle.

A window is left open at the end of the five steps, so that what is gathered of it is compared as well.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from megatron_tlm.errors import PlanError
from megatron_tlm.train.engines.optimizer import check_stages
from tests.equivalence.test_train import GRID, PIPE, SEQUENCE, TENSOR, TWO_STAGES, ZERO, assert_same_run, show
from tests.equivalence.training import (
    LEARNING_RATES,
    VOCAB,
    Trained,
    batches,
    build_plan,
    engine_on,
    engine_run,
    gather_tensors,
    plain_run,
    tiny,
)
from tests.ranks import run_ranks

UNMATCHED = {"match_params": False}
# Three chunks, two rows at a time: a memory's kernels are many and small, and each layout runs all of them.
MEMORY = {"memory_chunk_size": 8, "memory_persistent_tokens": 8, "micro_batch_size": 2, **UNMATCHED}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gated": {"mixer": "gated_attention", **UNMATCHED},
    "gated-headwise-normed": {"mixer": "gated_attention", "attention_gate": "headwise", "qk_norm": True, **UNMATCHED},
    "lmm": {"mixer": "titans_lmm", **MEMORY},
    "mag": {"mixer": "titans_mag", "attention_window": 6, **MEMORY},
    "hope": {"cms_levels": 3, "cms_periods": (1, 2, 3), "ffn_hidden_size": 96},
    "hope-sum": {"cms_levels": 3, "cms_periods": (1, 2, 3), "cms_update": "sum", "ffn_hidden_size": 96},
}
HOPE = ("hope", "hope-sum")
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {ZERO: 1}),
    (2, {TENSOR: 2, ZERO: 0}),
    (2, {TENSOR: 2, ZERO: 1, **SEQUENCE}),
    (2, {**TWO_STAGES, ZERO: 1}),
    (4, {**GRID, ZERO: 1, **SEQUENCE}),
    (2, {ZERO: 3, "recompute_granularity": "full"}),
]


@cache
def reference(name: str, dtype: torch.dtype = torch.float32) -> Trained:
    return plain_run(tiny(**ARCHITECTURES[name]), dtype=dtype)


CASES = [
    *(("gated", ranks, changes) for ranks, changes in LAYOUTS),
    ("gated-headwise-normed", 2, {TENSOR: 2, ZERO: 0}),
    ("gated-headwise-normed", 4, {**GRID, ZERO: 1, **SEQUENCE}),
    *(("hope", ranks, changes) for ranks, changes in LAYOUTS),
    ("hope", 1, {ZERO: 0}),
    ("hope", 2, {ZERO: 2}),
    ("hope", 2, {**TWO_STAGES, ZERO: 0}),
    ("hope-sum", 2, {ZERO: 1}),
    ("hope-sum", 2, {ZERO: 3}),
]


def shown(case: Any) -> str:
    return case if isinstance(case, str) else show(case)


@pytest.mark.parametrize(("name", "ranks", "changes"), CASES, ids=shown)
def test_a_layout_trains_as_one_process(name: str, ranks: int, changes: dict[str, Any]) -> None:
    runs = run_ranks(ranks, engine_run, tiny(**ARCHITECTURES[name], **changes), ranks)
    assert_same_run(runs[0], reference(name))


@pytest.mark.parametrize(
    ("name", "ranks", "changes"),
    [
        ("lmm", 2, {TENSOR: 2, ZERO: 0}),
        ("lmm", 2, {ZERO: 3, "recompute_granularity": "full"}),
        ("lmm", 4, {**GRID, ZERO: 1, **SEQUENCE}),
        ("mag", 2, {TENSOR: 2, ZERO: 1, **SEQUENCE}),
        ("mag", 2, {**TWO_STAGES, ZERO: 1}),
    ],
    ids=shown,
)
def test_memories_train_as_one_process_to_float32s_own_rounding(name: str, ranks: int, changes: dict[str, Any]) -> None:
    """The recurrence carries rounding on: plain float32 is itself some 1e-5 from float64, which bounds what is asked.

    That layouts compute the same thing is shown in float64, to 1e-11, by test_mixers.
    """
    found = run_ranks(ranks, engine_run, tiny(**ARCHITECTURES[name], **changes), ranks)[0]
    plain, exact = reference(name), reference(name, torch.float64)
    torch.testing.assert_close(found.losses, exact.losses, rtol=2e-6, atol=0)
    assert set(found.tensors) == set(exact.tensors)
    for key, tensor in exact.tensors.items():
        largest = tensor.abs().max()
        rounding, difference = (((run.tensors[key] - tensor).abs().max() / largest).item() for run in (plain, found))
        assert difference <= 5e-6 + 4 * rounding, f"{key} differs by {difference:.1e}, plain float32 by {rounding:.1e}"
        assert rounding < 2e-4


@pytest.mark.parametrize("name", HOPE)
def test_zero_3_may_split_a_level_into_sub_groups(name: str, tmp_path: Any) -> None:
    path = tmp_path / "deepspeed.json"
    path.write_text('{"zero_optimization": {"sub_group_size": 2000}}')
    config = tiny(**ARCHITECTURES[name], zero_stage=3, deepspeed_config=str(path))
    assert_same_run(run_ranks(2, engine_run, config, 2)[0], reference(name))


def test_a_stage_may_end_between_two_levels_of_a_layer() -> None:
    config = tiny(**ARCHITECTURES["hope"], **TWO_STAGES, num_layers=4)
    plan = build_plan(config, VOCAB)
    assert [plan.stage_units(0)[-1].name, plan.stage_units(1)[0].name] == ["layers.1.mlp.1", "layers.1.mlp.2"]
    assert_same_run(run_ranks(2, engine_run, config, 2)[0], plain_run(config))


def test_a_stage_without_a_level_is_refused_on_every_rank() -> None:
    plan = build_plan(tiny(**ARCHITECTURES["hope"], **{PIPE: 8}), VOCAB)
    with pytest.raises(PlanError, match=r"pipeline stage \d = \d+ parameters, 0 of them of level"):
        check_stages(plan)


def test_slow_weights_in_bf16_are_their_masters() -> None:
    run = run_ranks(2, engine_run, tiny(bf16=True, **ARCHITECTURES["hope"]), 2)[0]
    torch.testing.assert_close(run.losses, reference("hope").losses, rtol=3e-3, atol=0)
    for (parameter, role), tensor in run.tensors.items():
        if role == "master":
            assert torch.equal(run.tensors[parameter, "weight"], tensor.bfloat16().float())


def weights_after_each_step(rank: int, config: Any) -> list[dict[tuple[str, str], torch.Tensor]]:
    with engine_on(config, 1) as (engine, plan, mesh):
        data, weights = batches(config), []
        for rate in LEARNING_RATES:
            engine.train_step(data, rate)
            weights.append(gather_tensors(engine, plan, mesh, config.parallel.zero_stage))
    return weights


@pytest.mark.parametrize("name", HOPE)
def test_a_slow_level_moves_at_the_ends_of_its_windows_alone(name: str) -> None:
    (weights,) = run_ranks(1, weights_after_each_step, tiny(**ARCHITECTURES[name]))
    for level, moves_in in ((0, (2, 3, 4, 5)), (1, (2, 4)), (2, (3,))):
        key = (f"layers.1.mlp.{level}.up.weight", "weight")
        moved = tuple(step for step, (a, b) in enumerate(pairwise(weights), 2) if not torch.equal(a[key], b[key]))
        assert moved == moves_in


def test_levels_that_move_at_every_step_are_torchs_adamw() -> None:
    config = tiny(**ARCHITECTURES["hope"] | {"cms_periods": (1, 1, 1)})
    assert_same_run(run_ranks(1, engine_run, config, 1)[0], plain_run(config))


def test_one_level_is_transformer_plus_plus_bit_for_bit() -> None:
    plain, one = (run_ranks(1, engine_run, tiny(**kind), 1)[0] for kind in ({}, {"cms_levels": 1, "cms_periods": (1,)}))
    assert (one.losses, one.norms) == (plain.losses, plain.norms)
    assert one.tensors.keys() == plain.tensors.keys()
    assert all(torch.equal(one.tensors[key], tensor) for key, tensor in plain.tensors.items())
    assert_same_run(one, plain_run(tiny()))
