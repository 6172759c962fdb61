"""What a run came to, in words and a handful of numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from megatron_tlm.report.facts import number
from megatron_tlm.report.read import Event, Logged
from megatron_tlm.report.scale import short_number

RECENT = 20  # steps that a last loss or speed is the mean of
_SILENCE = 60.0  # seconds without a word, beside ten steps, before a run is called silent


@dataclass(frozen=True)
class State:
    """`word` and, if there is more to say, `detail`; `mood` is a badge's."""

    word: str
    mood: str
    detail: str = ""


def state(run: Logged, now: float) -> State:
    """Running, finished, stopped, failed, or silent: neither ended nor heard of for long."""
    ending = run.ending
    if ending is not None and ending["event"] == "failure":
        return State("failed", "bad", str(ending.get("error", "")))
    if ending is not None and ending["event"] == "stop":
        return State("stopped", "plain", str(ending.get("cause", "")))
    if ending is not None or (run.last_step and run.last_step == run.start.get("train_steps")):
        return State("finished", "good")
    quiet = now - run.written
    steps = run.curve("seconds").ys
    if quiet > _SILENCE + 10 * (median(steps[-RECENT:]) if steps else 60.0):
        return State("silent", "warn", f"nothing written for {duration(quiet)}, and no end was logged")
    return State("running", "good")


def tiles(run: Logged) -> Iterator[tuple[str, str, str]]:
    """(label, value, detail) of the numbers that come first."""
    total, each = (run.start.get(name) for name in ("train_steps", "tokens_per_step"))
    share = f"{100 * run.last_step / total:.0f} % of {total:,}" if total else ""
    yield "steps", f"{run.last_step:,}", share
    tokens = run.curve("tokens").ys
    if tokens:
        yield "tokens", short_number(tokens[-1]), f"{each:,} a step" if each else ""
    loss = recent(run, "loss")
    if loss is not None:
        yield "training loss", f"{loss:.4f}", f"mean of the last {min(RECENT, len(run.curve('loss').ys))} steps"
    valid = run.curve("valid_loss")
    if valid:
        best = min(valid.ys)
        told = "the best so far" if valid.ys[-1] == best else f"best {best:.4f}"
        yield "validation loss", f"{valid.ys[-1]:.4f}", f"{told}, step {int(valid.xs[-1]):,}"
    speed = typical(run, "tokens_per_second")
    if speed is not None:
        yield "throughput", short_number(speed), "tokens/s, median"
    used, teraflops = typical(run, "mfu"), typical(run, "tflops_per_device")
    if used is not None:
        yield "MFU", f"{100 * used:.3g} %", ""
    elif teraflops is not None:
        yield "compute", short_number(teraflops * 1e12), "FLOP/s per device, median"
    taken = run.curve("seconds").ys
    if taken:
        wait = sum(run.curve("data_wait_seconds").ys)
        yield "time in steps", duration(sum(taken)), f"{100 * wait / max(sum(taken), 1e-9):.1f} % waiting for data"
    starts = len(run.of_kind("start"))
    if starts > 1:
        yield "restarts", str(starts - 1), f"{lost_steps(run)} steps taken again"


def recent(run: Logged, name: str) -> float | None:
    """The mean of the last values."""
    values = run.curve(name).ys[-RECENT:]
    return fmean(values) if values else None


def typical(run: Logged, name: str) -> float | None:
    """The median of all values, the first step's left out: it allocates and compiles."""
    values = run.curve(name).ys
    return median(values[1:] or values) if values else None


def lost_steps(run: Logged) -> int:
    return sum(int(event.get("steps_again", 0)) for event in run.of_kind("resume"))


def model_line(run: Logged) -> str:
    """What is trained and where, as far as it was logged."""
    start = run.start
    if not start:
        return ""
    model, layout, plan = (part(start, name) for name in ("model", "layout", "plan"))
    parts = [
        f"{model.get('mixer', '')}, {short_number(number(plan.get('parameters')) or 0)} parameters, "
        f"{model.get('layers')} layers of {model.get('hidden_size')}, {model.get('seq_length')} tokens a sample"
        if model
        else "",
        f"tensor {layout.get('tensor')} x pipeline {layout.get('pipe')} x data {layout.get('data')}" if layout else "",
        places(start),
        str(start.get("device", "")),
    ]
    return " · ".join(part for part in parts if part)


def part(event: Event, name: str) -> Mapping[str, Any]:
    """A fact that has facts of its own; empty where it is not there."""
    found = event.get(name)
    return found if isinstance(found, dict) else {}


def places(start: Event) -> str:
    """`2 ranks on 1 host`."""
    counts = ((start.get("ranks", 1), "rank"), (start.get("hosts", 1), "host"))
    return " on ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)


def duration(seconds: float) -> str:
    """`2d 3h`, `4m 05s`, `0.52 s`: two figures are enough."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def stage_of_layers(plan: Mapping[str, Any]) -> list[int]:
    """The stage that holds each layer's MLP, from the plan that a start logged."""
    names = [unit["name"] for unit in plan.get("units", ())]
    firsts = [stage["first_unit"] for stage in plan.get("stages", ())]
    stages, stage = [], -1
    for name in names:
        if stage + 1 < len(firsts) and name == firsts[stage + 1]:
            stage += 1
        if name.endswith(".mlp"):
            stages.append(max(stage, 0))
    return stages
