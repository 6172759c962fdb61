"""Facts of another kind count as not logged, so that a page is made of whatever lies in a folder."""

from typing import Any

import pytest

from megatron_tlm.report.facts import PLAN, fits, fitting, number
from tests.unit.report.logs import start


def test_what_a_run_logs_of_its_plan_fits() -> None:
    assert fits(start()["plan"], PLAN)
    assert fitting(start()) == start()


@pytest.mark.parametrize(
    ("value", "kind", "does"),
    [
        (3, int, True),
        (3, float, True),
        (3.5, int, False),
        (True, int, False),
        (float("nan"), float, False),
        (10**400, int, False),
        ("3", float, False),
        ([], [int], True),
        ([1, "2"], [int], False),
        ({"a": 1, "more": None}, {"a": int}, True),
        ({}, {"a": int}, False),
        ([1], {"a": int}, False),
        ({"x": []}, dict, True),
    ],
)
def test_a_value_is_of_a_kind_or_not(value: Any, kind: Any, does: bool) -> None:
    assert fits(value, kind) == does


def test_facts_that_do_not_fit_are_left_out_and_others_stay() -> None:
    event = {"event": "straggler", "step": 3, "ranks": 4, "seconds": "x", "cause": [1], "bytes": 2.0}
    assert fitting(event) == {"event": "straggler", "step": 3, "cause": [1], "bytes": 2.0}
    assert fitting({"event": "start", "ranks": 4})["ranks"] == 4
    assert fitting({"event": ["start"], "ranks": "x"}) == {"event": ["start"], "ranks": "x"}


def test_a_figure_can_be_drawn() -> None:
    assert [number(value) for value in (1, 2.5, -1e99, 0)] == [1.0, 2.5, -1e99, 0.0]
    assert {number(value) for value in (1e101, float("inf"), float("nan"), 10**400, True, "1", None, [1])} == {None}
