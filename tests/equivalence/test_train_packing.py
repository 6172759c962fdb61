"""Packed documents and masked losses: any layout trains as one process on the global batch at once."""

from functools import cache
from typing import Any

import pytest

from tests.equivalence.test_train import GRID, PIPE, SEQUENCE, TENSOR, ZERO, assert_same_run
from tests.equivalence.training import Trained, engine_run, plain_run, show, tiny
from tests.ranks import run_ranks

ALL = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
MASKED = {"eod_mask_loss": True}

CASES: list[tuple[int, dict[str, Any]]] = [
    (1, {**ALL}),
    (2, {**MASKED, ZERO: 0}),
    (2, {**ALL, ZERO: 3}),
    (2, {**ALL, TENSOR: 2, "recompute_granularity": "full", **SEQUENCE}),
    (2, {**MASKED, PIPE: 2}),
    (3, {**ALL, PIPE: 3}),
    (4, {**ALL, PIPE: 2, ZERO: 0}),
    (4, {**ALL, **GRID, **SEQUENCE}),
]


@cache
def reference(rules: tuple[tuple[str, Any], ...]) -> Trained:
    return plain_run(tiny(**dict(rules)))


@pytest.mark.parametrize(("ranks", "changes"), CASES, ids=show)
def test_a_layout_trains_as_one_process(ranks: int, changes: dict[str, Any]) -> None:
    runs = run_ranks(ranks, engine_run, tiny(**changes), ranks)
    assert all(run.losses == runs[0].losses and run.norms == runs[0].norms for run in runs), "ranks report unlike"
    assert_same_run(runs[0], reference(tuple((key, changes[key]) for key in ALL if key in changes)))


def test_the_rules_matter() -> None:
    plain, masked, packed = plain_run(tiny()), reference(tuple(MASKED.items())), reference(tuple(ALL.items()))
    assert len({plain.losses[1], masked.losses[1], packed.losses[1]}) == 3
