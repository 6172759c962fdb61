"""The page of a run, in every state that a run can be in."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds
from megatron_tlm.report.facts import PLAN
from megatron_tlm.report.read import Logged, read_run
from megatron_tlm.report.run import clock, run_page
from megatron_tlm.report.summary import duration, stage_of_layers, state, tiles
from megatron_tlm.train.logs.records import Lost
from tests.tiny_model import tiny_plan
from tests.unit.report.logs import NOW, start, step, write_logs
from tests.unit.report.test_page import EVIL, Outline


def logged(folder: Path, *args: Any, age: float = 1.0) -> Logged:
    write_logs(folder, *args)
    for file in folder.iterdir():
        os.utime(file, (NOW - age, NOW - age))
    return read_run(folder)


STAGE = StageSeconds(load=0.01, forward=0.1, backward=0.2, communication=0.02, wait=0.1, reduce=0.03, update=0.04)
MEASURED = PipelineSeconds(steps=5, micro_batches=4, seconds=0.43, stages=(STAGE, STAGE), units=(3, 3))
EVENTS = [
    start(),
    {"event": "checkpoint", "step": 10, "time": NOW - 90, "path": "ck/step-00000010", "bytes": 3 * 2**20}
    | {"seconds": 1.5, "stall_seconds": 0.02},
    start(restarts=1),
    {"event": "resume", "step": 10, "time": NOW - 50, "source": "ck/step-00000010"} | asdict(Lost(5, 2.5, 80.0)),
    {"event": "straggler", "step": 12, "time": NOW - 45, "ranks": [{"rank": 1, "host": "b", "ratio": 1.62}]},
    {"event": "bad_step", "step": 15, "time": NOW - 40, "loss": 9e9, "action": "skip", "samples": [1, 2]},
]
STEPS = [step(n, **{"forward-compute-time-max": 0.1, "mem-rss-bytes": 2.0**30, "odd/x": 1}) for n in range(1, 31)]


def test_a_page_tells_all_that_was_logged(tmp_path: Path) -> None:
    lines = [*STEPS, step(31, **MEASURED.scalars()), {"step": 31, "valid_loss": 4.2, "valid_ppl": 66.7}]
    made = run_page(logged(tmp_path / "run", lines, EVENTS), NOW)
    for told in (
        "31", "78 % of 40", "4.2000", "the best so far", "restarts", "5 steps taken again",
        "attention", "tensor 1 x pipeline 2 x data 1", "2 ranks on 1 host",
        "Learning rate", "Throughput", "Memory", "Forward of a rank",
        "stage 1: wait 100 ms", "measured bubble 30.2 %", "layer 0: MLP 48, stage 0", "layer 1: MLP 16, stage 1",
        "from ck/step-00000010: 5 steps to take again, 2.5 s of work, after 1m 20s without a step",
        "loss 9G, action skip, samples [1, 2]", "3 MiB", "bad step 15",
        "rank 1 on b: 1.62 times the median", "lr: 0.001", "deepspeed", "1 charts",
    ):  # fmt: skip
        assert told in made, told
    assert Outline(made).open == []


def test_a_run_that_only_just_began_or_logged_no_events_has_a_page(tmp_path: Path) -> None:
    for name, steps, events in (("begun", [], [start()]), ("old", STEPS, []), ("empty", [], [])):
        made = run_page(logged(tmp_path / name, steps, events), NOW)
        assert Outline(made).open == []
        assert ("nothing was logged" in made) == (not steps)


def test_what_another_version_logged_is_left_out(tmp_path: Path) -> None:
    whole, part = start()["plan"], start()["plan"]
    del part["stages"][1]["cost"]
    for name, plan in (("none", None), ("words", "x"), ("half", {"widths": [1]}), ("part", part), ("whole", whole)):
        run = logged(
            tmp_path / name, [step(1)], [start(plan=plan), {"event": "resume"}, {"event": "bad_step", "step": "x"}]
        )
        assert ("layer 0: MLP 48" in run_page(run, NOW)) == (name == "whole")


@pytest.mark.parametrize("odd", ["x", [1], {"a": 1}, None, float("nan"), 10**400], ids=lambda odd: repr(odd)[:9])
def test_facts_of_any_kind_make_a_page(odd: Any, tmp_path: Path) -> None:
    plan = start()["plan"]
    stage = plan["stages"][0]
    plans = [{**plan, name: odd} for name in PLAN] + [{**plan, "stages": [{**stage, name: odd}]} for name in stage]
    starts = [start(**dict.fromkeys(start().keys() - {"event"}, odd)), *(start(plan=item) for item in plans)]
    events = [{**event, name: odd} for event in EVENTS for name in event]
    lines = [step(1), *({**step(1), name: odd} for name in step(1))]
    for number, last in enumerate(starts):
        run = logged(tmp_path / str(number), lines, [*([] if number else events), last])
        assert Outline(run_page(run, NOW)).open == []


def test_names_from_a_stranger_stay_text(tmp_path: Path) -> None:
    events = [start(host=EVIL, device=EVIL), {"event": EVIL, "step": 1, EVIL: EVIL}, {"event": "stop", "cause": EVIL}]
    run = logged(tmp_path / "run", [step(1, **{EVIL: 1.0})], events, EVIL)
    made = run_page(run, NOW)
    assert "<script>alert" not in made
    assert Outline(made).open == []


@pytest.mark.parametrize(
    ("last", "steps", "age", "word", "detail"),
    [
        ([], 31, 1, "running", ""),
        ([], 31, 600, "silent", "nothing written for 10m 00s, and no end was logged"),
        ([], 40, 600, "finished", ""),
        ([{"event": "finish", "step": 40}], 40, 600, "finished", ""),
        ([{"event": "stop", "step": 31, "cause": "SIGTERM"}], 31, 600, "stopped", "SIGTERM"),
        ([{"event": "failure", "step": 31, "error": "rank 1: gone"}], 31, 600, "failed", "rank 1: gone"),
    ],
)
def test_a_state_is_a_word(
    last: list[dict[str, Any]], steps: int, age: float, word: str, detail: str, tmp_path: Path
) -> None:
    run = logged(tmp_path / "run", [step(n) for n in range(1, steps + 1)], [*EVENTS, *last], age=age)
    told = state(run, NOW)
    assert (told.word, told.detail) == (word, detail)


def test_numbers_that_come_first(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", [step(n, data_wait_seconds=0.05) for n in range(1, 31)], EVENTS)
    found = {label: (value, detail) for label, value, detail in tiles(run)}
    assert found["training loss"] == ("4.7950", "mean of the last 20 steps")
    assert found["time in steps"] == ("15 s", "10.0 % waiting for data")
    assert found["restarts"] == ("1", "5 steps taken again")


def test_a_layer_belongs_to_the_stage_of_its_mlp() -> None:
    plan = tiny_plan(pipe=2, num_layers=4)
    wanted = [
        next(
            stage
            for stage, indices in enumerate(plan.stages)
            if plan.units[i].name == f"layers.{layer}.mlp" and i in indices
        )
        for layer in range(4)
        for i in range(len(plan.units))
        if plan.units[i].name == f"layers.{layer}.mlp"
    ]
    assert stage_of_layers(plan.to_json()) == wanted
    assert stage_of_layers({}) == []


def test_durations_have_two_figures() -> None:
    assert [duration(s) for s in (0.5234, 59, 61, 3725, 200_000)] == ["0.523 s", "59 s", "1m 01s", "1h 02m", "2d 7h"]


@pytest.mark.parametrize("seconds", [1e12, -1e30, float("inf"), float("nan"), "x", None])
def test_what_is_no_moment_of_the_calendar_has_no_clock(seconds: object) -> None:
    assert clock(seconds) == ""
