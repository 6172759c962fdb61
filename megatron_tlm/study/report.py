"""A study's report in a folder: report.html on its own, report.md with pictures, results.json for programs."""

import json
from pathlib import Path
from typing import Any

from megatron_tlm.plan.explain import counted
from megatron_tlm.study.html import write_page
from megatron_tlm.study.markdown import write_markdown
from megatron_tlm.study.parts import Section
from megatron_tlm.study.record import described
from megatron_tlm.study.results import ArmResult, StudyResults
from megatron_tlm.study.runs import Point, RunResult, replace_text
from megatron_tlm.study.statistics import Interval
from megatron_tlm.study.story import sections


def write_report(results: StudyResults, folder: Path) -> list[Path]:
    """Writes the files; the same finished runs give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Section] = list(sections(results))
    file = results.design.file
    title = f"Study {file.name}"
    subtitle = (
        f"{counted(len(file.arms), 'arm')}, {counted(len(file.learning_rates), 'learning rate')} on "
        f"{counted(len(file.tuning_seeds), 'tuning seed')}, {counted(len(file.seeds), 'seed')}; compared with "
        f"{file.reference}"
    )
    page, text, numbers = folder / "report.html", folder / "report.md", folder / "results.json"
    replace_text(page, write_page(title, subtitle, parts))
    write_markdown(title, subtitle, parts, text)
    replace_text(numbers, json.dumps(as_json(results), indent=1) + "\n")
    return [page, text, numbers]


def as_json(results: StudyResults) -> dict[str, Any]:
    """Every number of the report, and the losses of every run at each of its evaluations."""
    return {
        "study": described(results.design),
        "complete": results.is_complete,
        "samples": {
            "finished": results.samples.finished,
            "checked": results.samples.checked,
            "differing": [list(key) for key in results.samples.differing],
        },
        "arms": [_arm(arm) for arm in results.arms],
        "runs": [_run(result) for result in results.now.results.values()],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    return {
        "group": arm.pair[0],
        "arm": arm.arm,
        "learning_rate": arm.rate,
        "at_edge_of_grid": arm.at_edge,
        "parameters": arm.budget.parameters,
        "parameters_in_layers": arm.budget.non_embedding,
        "flops_per_token": arm.budget.flops_per_token,
        "tokens": arm.budget.tokens,
        "widths": list(arm.budget.widths),
        "valid_loss": _interval(arm.summary),
        "difference": _interval(arm.difference),
    }


def _interval(value: Interval | None) -> dict[str, Any] | None:
    return None if value is None else dict(vars(value))


def _run(result: RunResult) -> dict[str, Any]:
    run = result.run
    return {
        "group": run.group,
        "arm": run.arm,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "state": result.state.value,
        "reason": result.reason,
        "step": result.step,
        "train_steps": result.train_steps,
        "valid": [_point(point) for point in result.valid],
    }


def _point(point: Point) -> list[float | None]:
    return [point.step, point.tokens, point.loss]
