"""The page of one run: what it came to, its curves, its stages, what happened to it, and all that it was given."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.measured import PipelineSeconds, read_scalars
from megatron_tlm.report.chart import Mark
from megatron_tlm.report.facts import PLAN, fits, number
from megatron_tlm.report.figures import figures, grouped_figures, loss_figures
from megatron_tlm.report.page import Html, badge, columns, element, fold, page, searchable, section, table, text, tiles
from megatron_tlm.report.pictures import taper_picture, time_bars
from megatron_tlm.report.read import Event, Logged
from megatron_tlm.report.scale import short_number, size_text
from megatron_tlm.report.summary import duration, model_line, part, places, stage_of_layers, state
from megatron_tlm.report.summary import tiles as summary_tiles

MOST_ROWS, MOST_MARKS = 200, 50  # of a table and a chart; the newest are shown
KINDS = ("forward", "backward", "communication", "wait", "load", "reduce", "update")
_OWN_COLUMNS = ("event", "step", "time")


def run_page(run: Logged, now: float) -> str:
    """The whole file; `now` is the time it is made at, in seconds since 1970."""
    told = state(run, now)
    head = Html(f"{badge(told.word, told.mood)} {text(told.detail)}<br>{text(model_line(run))}")
    blocks = [
        tiles(summary_tiles(run)),
        section("Curves", *loss_figures([run], marks(run)), columns(*figures([run], marks(run)))),
        *plan_sections(run),
        *history_sections(run),
        *rank_section(run, now),
        *rest_sections(run),
    ]
    made = f"{run.folder}, read {clock(now)}"
    return page(run.name, *blocks, element("p", made, _class="label"), subtitle=head)


def marks(run: Logged) -> list[Mark]:
    """Where the run went back or on, and where a step was bad."""
    kinds = {"resume": "resumed from step", "bad_step": "bad step", "rollback": "went back from step"}
    told = ((event["event"], event.get("step")) for event in run.of_kind(*kinds))
    marked = [(kind, step) for kind, step in told if isinstance(step, int)][-MOST_MARKS:]
    return [Mark(step, f"{kinds[kind]} {step}", bad=kind != "resume") for kind, step in marked]


def plan_sections(run: Logged) -> Iterator[Html]:
    """The taper, the stages as planned, and their times as measured."""
    plan = _plan(run)
    measured = _measured(run)
    if plan:
        stages = stage_of_layers(plan)
        if len(stages) != len(plan["widths"]):
            stages = [0] * len(plan["widths"])
        note = ""
        if len(plan["stages"]) > 1:
            note = f"Planned bubble {100 * plan['bubble']:.1f} %, slowest stage {plan['imbalance']:.3f} times the mean."
        yield section("Model", taper_picture(plan["widths"], stages), _stage_table(plan, measured), note=note)
    if measured is not None:
        rows = {
            f"stage {number}": [1000 * getattr(taken, kind) for kind in KINDS]
            for number, taken in enumerate(measured.stages)
        }
        note = (
            f"Means over {measured.steps} steps before step {run.stages.get('step')}, of {measured.micro_batches} "
            f"micro-batches each; measured bubble {100 * measured.mean_bubble:.1f} %."
        )
        yield section("Stages, measured", time_bars("A step of each stage", "ms", rows, KINDS), note=note)


def _plan(run: Logged) -> Mapping[str, Any]:
    """What the last start logged of it; nothing where a part is missing or another, as from another version."""
    plan = part(run.start, "plan")
    return plan if fits(plan, PLAN) and plan["stages"] else {}


def _measured(run: Logged) -> PipelineSeconds | None:
    try:
        return read_scalars(run.stages) if run.stages else None
    except PlanError:
        return None


def _stage_table(plan: Mapping[str, Any], measured: PipelineSeconds | None) -> Html:
    mean = sum(stage["cost"] for stage in plan["stages"]) / len(plan["stages"]) or 1.0
    names = ["stage", "first unit", "last unit", "parameters", "FLOP per token", "over mean", "idle, planned", "memory"]
    if measured is not None and len(measured.stages) == len(plan["stages"]):
        names[7:7] = ["idle, measured"]
    rows = []
    for place, stage in enumerate(plan["stages"]):
        row = [place, stage["first_unit"], stage["last_unit"], short_number(stage["parameters"])]
        row += [short_number(stage["cost"]), f"{stage['cost'] / mean:.3f}", f"{100 * stage['bubble']:.1f} %"]
        if len(names) == 9 and measured is not None:
            row.append(f"{100 * measured.bubble(place):.1f} %")
        rows.append([*row, size_text(stage["memory_bytes"]["total"])])
    return table(names, rows, right=range(3, len(names)))


def history_sections(run: Logged) -> Iterator[Html]:
    """What happened, and what was saved."""
    others = [event for event in run.events if event.get("event") != "checkpoint"]
    if others:
        rows = ([clock(e.get("time")), e.get("step"), _kind(e), told(e)] for e in others[-MOST_ROWS:])
        yield section("What happened", table(("time", "step", "event", ""), rows, right=(1,)), note=_newest(others))
    saves = run.of_kind("checkpoint")
    if saves:
        rows = (
            [
                clock(e.get("time")),
                e.get("step"),
                size_text(e.get("bytes", 0)),
                duration(e.get("seconds", 0.0)),
                duration(e.get("stall_seconds", 0.0)),
                e.get("path"),
            ]
            for e in reversed(saves[-MOST_ROWS:])
        )
        header = ("time", "step", "size", "written in", "training stood still", "folder")
        table_of_saves = table(header, rows, right=(1, 2, 3, 4))
        if len(saves) > 8:
            table_of_saves = fold(
                f"{len(saves)} checkpoints, the newest of step {saves[-1].get('step')}", table_of_saves
            )
        yield section("Checkpoints", table_of_saves)


def told(event: Event) -> str:
    """An event's own facts, in a line."""
    kind = event.get("event")
    if kind == "start":
        restarts = f", restart {event['restarts']} by torchrun" if event.get("restarts") else ""
        return f"{places(event)}, rank 0 on {event.get('host')}{restarts}"
    if kind == "resume":
        return (
            f"from {event.get('source')}: {event.get('steps_again', 0)} steps to take again, "
            f"{duration(event.get('seconds_again', 0.0))} of work, after {duration(event.get('seconds_down', 0.0))} "
            "without a step"
        )
    if kind == "straggler":
        ranks = (item for item in event.get("ranks", ()) if isinstance(item, dict))
        return ", ".join(f"rank {i.get('rank')} on {i.get('host')}: {i.get('ratio')} times the median" for i in ranks)
    facts = {key: value for key, value in event.items() if key not in _OWN_COLUMNS}
    if len(facts) == 1:
        return str(next(iter(facts.values())))
    return ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in facts.items())


def rank_section(run: Logged, now: float) -> Iterator[Html]:
    """Where every rank was last seen."""
    if not run.heartbeats:
        return
    rows = (
        [b.get("rank"), b.get("host"), b.get("pid"), b.get("phase"), b.get("step"), _ago(now, b.get("time"))]
        for b in run.heartbeats
    )
    shown = table(("rank", "host", "process", "phase", "step", "last sign of life"), rows, right=(0, 2, 4, 5))
    phases = sorted({str(beat.get("phase")) for beat in run.heartbeats})
    yield section("Ranks", fold(f"{len(run.heartbeats)} ranks: {', '.join(phases)}", shown))


def rest_sections(run: Logged) -> Iterator[Html]:
    """Other figures, versions and the configuration."""
    others = list(grouped_figures(run))
    if others:
        yield section("Other figures", fold(f"{len(others)} charts", columns(*others)))
    blocks = []
    if versions := part(run.start, "versions"):
        blocks.append(table(("what", "version"), versions.items()))
    if run.config:
        blocks.append(fold("Every field of the configuration", searchable(run.config, "search the configuration")))
    if blocks:
        yield section("Configuration", *blocks)


def clock(seconds: object) -> str:
    """A moment in UTC, to the second; nothing for what is no moment of the calendar."""
    if not isinstance(seconds, int | float):
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _kind(event: Event) -> Html:
    kind = str(event.get("event"))
    moods = {"failure": "bad", "bad_step": "bad", "rollback": "warn", "straggler": "warn", "finish": "good"}
    return badge(kind.replace("_", " "), moods.get(kind, "plain"))


def _ago(now: float, then: object) -> str:
    moment = number(then)
    return "" if moment is None else f"{duration(max(now - moment, 0.0))} ago"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return short_number(value)
    return value if isinstance(value, str) else json.dumps(value)


def _newest(events: list[Event]) -> str:
    return "" if len(events) <= MOST_ROWS else f"The newest {MOST_ROWS} of {len(events)}."
