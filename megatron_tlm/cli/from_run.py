"""`plan --from-run LOGDIR`: what a run's stages took beside what was planned for them, and whether to cut otherwise."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from megatron_tlm.cli.files import writing
from megatron_tlm.cli.stage_table import duration
from megatron_tlm.config.flags import Flags
from megatron_tlm.config.load import load
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.plan.feedback import Feedback, compare, medians
from megatron_tlm.plan.measured import PipelineSeconds, read_scalars
from megatron_tlm.report.facts import fits
from megatron_tlm.report.read import CONFIG_NAME, EVENTS_NAME, METRICS_NAME, records

WORTH_IT = 0.01  # what a step must gain by another cut for it to be called better
_START = {"step": int, "layout": {"pipe": int, "data": int}, "model": {"vocab_size": int}}


@dataclass(frozen=True)
class MeasuredRun:
    """What a log folder says of a run since it was last started."""

    folder: Path
    config: Config
    vocab_size: int
    data: int
    first_step: int
    last_step: int
    step_seconds: float
    pipeline: PipelineSeconds | None


def read_measured(folder: Path, flags: Flags) -> MeasuredRun:
    """PlanError for a folder that holds no run, or none that has logged anything since its last start.

    `flags` outweigh the run's own configuration, which helps where its files have moved.
    """
    for name in (CONFIG_NAME, EVENTS_NAME, METRICS_NAME):
        if not (folder / name).is_file():
            raise PlanError(f"--from-run = {folder} holds no {name}, 1 of 3 files of a run; give its --log-dir")
    config = load(replace(flags, config=flags.config or str(folder / CONFIG_NAME)))
    starts = [record for record in records(folder / EVENTS_NAME) if record.get("event") == "start"]
    if not starts:
        raise PlanError(f"--from-run = {folder / EVENTS_NAME} tells of 0 starts; give the --log-dir of a run")
    start = starts[-1]
    if not fits(start, _START):
        raise PlanError(
            f"--from-run = {folder / EVENTS_NAME} has a start without step, layout or model; give the --log-dir of a "
            "run of this version"
        )
    steps = [
        record
        for record in records(folder / METRICS_NAME)
        if "loss" in record and fits(record, {"step": int, "seconds": float}) and record["step"] > start["step"]
    ]
    # The first step allocates, here as in what the stages measure.
    if len(steps) < 2:
        raise PlanError(
            f"--from-run = {folder / METRICS_NAME} has {len(steps)} steps since the run was started at step "
            f"{start['step']}, 2 are needed; let it go on"
        )
    measured = [times for record in steps if (times := read_scalars(record)) is not None]
    if start["layout"]["pipe"] > 1 and not measured:
        raise PlanError(
            f"--from-run = {folder / METRICS_NAME} has 0 records of the stages' times since step {start['step']}; they "
            f"come every {config.logging.log_interval} steps (--log-interval)"
        )
    return MeasuredRun(
        folder=folder,
        config=config,
        vocab_size=start["model"]["vocab_size"],
        data=start["layout"]["data"],
        first_step=steps[1]["step"],
        last_step=steps[-1]["step"],
        step_seconds=median(record["seconds"] for record in steps[1:]),
        pipeline=medians(measured) if measured else None,
    )


def tell(folder: Path, flags: Flags, *, as_json: bool, target: Path | None) -> int:
    """Print the comparison; the measured coefficients go to `target`, a profile for --hardware-profile."""
    run = read_measured(folder, flags)
    plan = build_plan(run.config, run.vocab_size, data=run.data)
    objective = run.config.parallel.pipeline_objective
    feedback = None if run.pipeline is None else compare(plan, run.pipeline, run.step_seconds, objective)
    if target is not None:
        if feedback is None:
            raise PlanError("--profile = nothing to fit in a run of 1 stage; measure the units without --from-run")
        with writing("--profile", target):
            feedback.profile.save(target)
    if as_json:
        print(json.dumps(to_json(run, plan, feedback)))
        return 0
    print("\n".join(lines(run, plan, feedback)))
    if target is not None:
        print(f"{target}: the measured coefficients; use them with --hardware-profile {target}")
    return 0


def lines(run: MeasuredRun, plan: Plan, feedback: Feedback | None) -> list[str]:
    """A row per stage, the step as a whole, and what the measurements speak for."""
    grid = plan.grid
    told = [
        f"run     {run.folder}, steps {run.first_step} to {run.last_step}, medians; "
        f"tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data}",
        "",
    ]
    if feedback is not None:
        told += [*_stage_rows(feedback), ""]
    told.append(_step_line(run, feedback.plan if feedback else plan))
    return told if feedback is None else [*told, _fit_line(feedback), *advice(feedback)]


def _stage_rows(feedback: Feedback) -> list[str]:
    rows = [
        f"{'':39}  {'compute':>8} {'of all':>6} {'(planned)':>9}  {'over':>5}  {'':>8} {'':>8} {'reduce,':>8}  bubble",
        f"{'stage':>5}  {'first unit':16} {'last unit':16} {'a step':>8} {'':>6} {'':>9}  {'plan':>5}  "
        f"{'wait':>8} {'messages':>8} {'update':>8}  (planned)",
    ]
    plan, measured = feedback.plan, feedback.measured
    for stage, taken in enumerate(measured.stages):
        units = plan.stage_units(stage)
        share, planned = feedback.measured_share(stage), feedback.planned_share(stage)
        over = share / planned if planned else float("inf")
        bubble, planned_bubble = measured.bubble(stage), plan.timeline.bubble(stage)
        rows.append(
            f"{stage:5}  {units[0].name:16} {units[-1].name:16} {duration(taken.compute):>8} {share:6.1%} "
            f"{f'({planned:.1%})':>9}  {over:5.2f}  {duration(taken.wait):>8} {duration(taken.communication):>8} "
            f"{duration(taken.reduce + taken.update):>8}  {bubble:.1%} ({planned_bubble:.1%})"
        )
    mean, planned_mean = measured.mean_bubble, plan.timeline.mean_bubble
    return [*rows, f"bubble {mean:.1%} measured, {planned_mean:.1%} planned, mean of the stages"]


def _step_line(run: MeasuredRun, plan: Plan) -> str:
    tokens = plan.workload.tokens * plan.micro_batches * plan.grid.data
    measured = f"step {duration(run.step_seconds)}, {tokens / run.step_seconds:,.0f} tokens/s measured"
    if plan.step_seconds is None or plan.tokens_per_second is None:
        return f"{measured}; planned in FLOPs: --hardware or --hardware-profile would have given seconds"
    off = plan.step_seconds / run.step_seconds - 1
    return f"{measured}; planned {duration(plan.step_seconds)}, {plan.tokens_per_second:,.0f} tokens/s ({off:+.1%})"


def _fit_line(feedback: Feedback) -> str:
    seconds = feedback.fitted.step_seconds or 0.0
    off = seconds / feedback.step_seconds - 1
    return f"by the measured coefficients this cut is simulated to take {duration(seconds)} ({off:+.1%} of the step)"


def advice(feedback: Feedback) -> list[str]:
    """Whether another cut would be better by the measured coefficients, and the flag that makes it."""
    best, gain = feedback.best, feedback.saving
    if best.stages == feedback.plan.stages or gain <= 0:
        return ["No other cut is faster by them."]
    flag = cut_flag(best)
    if gain < WORTH_IT:
        return [f"The best cut by them would save {gain:.2%} of the step, too little to count on ({flag})."]
    return [f"Another cut would save {gain:.1%} of the step by them:", f"  {flag}"]


def cut_flag(plan: Plan) -> str:
    """The stages as `train` takes them."""
    starts = [plan.stage_units(stage)[0].name for stage in range(1, len(plan.stages))]
    return f"--pipeline-cuts {' '.join(starts)}"


def to_json(run: MeasuredRun, plan: Plan, feedback: Feedback | None) -> dict[str, Any]:
    """The same for programs; seconds and shares."""
    own = feedback.plan if feedback else plan
    told: dict[str, Any] = {
        "steps": [run.first_step, run.last_step],
        "layout": {"tensor": plan.grid.tensor, "pipe": plan.grid.pipe, "data": plan.grid.data},
        "step_seconds": {"measured": run.step_seconds, "planned": own.step_seconds},
        "tokens_per_second": {
            "measured": own.workload.tokens * own.micro_batches * own.grid.data / run.step_seconds,
            "planned": own.tokens_per_second,
        },
    }
    if feedback is None:
        return told
    measured, best = feedback.measured, feedback.best
    told["step_seconds"]["fitted"] = feedback.fitted.step_seconds
    told["bubble"] = {"measured": measured.mean_bubble, "planned": own.timeline.mean_bubble}
    told["stages"] = [
        {
            "first_unit": own.stage_units(stage)[0].name,
            "last_unit": own.stage_units(stage)[-1].name,
            "measured": asdict(taken) | {"compute": taken.compute, "bubble": measured.bubble(stage)},
            "compute_share": {
                "measured": feedback.measured_share(stage),
                "planned": feedback.planned_share(stage),
            },
            "planned_bubble": own.timeline.bubble(stage),
        }
        for stage, taken in enumerate(measured.stages)
    ]
    told["replan"] = {
        "stages": [[stage.start, stage.stop] for stage in best.stages],
        "first_units": [best.stage_units(stage)[0].name for stage in range(len(best.stages))],
        "step_seconds": best.step_seconds,
        "saving": feedback.saving,
    }
    return told
