"""The page of several runs: a row each, their curves over each other, and in what their configurations differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from megatron_tlm.report.chart import color_of
from megatron_tlm.report.facts import number
from megatron_tlm.report.figures import figures, loss_figures
from megatron_tlm.report.page import Html, badge, columns, element, fold, page, searchable, section, table, text
from megatron_tlm.report.read import Logged
from megatron_tlm.report.run import clock, history_sections, plan_sections
from megatron_tlm.report.scale import short_number
from megatron_tlm.report.summary import duration, model_line, part, recent, state, typical

# Where a run writes is no difference between runs.
_PLACES = ("checkpoint.save", "checkpoint.load", "logging.log_dir", "logging.tensorboard_dir")


def compare_page(runs: Sequence[Logged], now: float) -> str:
    """The whole file; `now` is the time it is made at, in seconds since 1970."""
    blocks = [
        section("Runs", _summary(runs, now)),
        section("Curves", *loss_figures(runs), columns(*figures(runs))),
        *_differences(runs),
        section("Each run", *(_one(run) for run in runs)),
        element("p", f"read {clock(now)}", _class="label"),
    ]
    return page(f"{len(runs)} runs", *blocks, subtitle=", ".join(run.name for run in runs))


def names_of(folders: Sequence[Path]) -> list[str]:
    """What tells the folders apart: their paths without the parts that all have in common at either end."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) == 1:
        return ["/".join(part[-2:]) for part in parts]
    shortest = min(map(len, parts))
    start = next((n for n in range(shortest) if len({part[n] for part in parts}) > 1), shortest)
    stop = next((n for n in range(shortest - start) if len({part[-1 - n] for part in parts}) > 1), shortest - start)
    return ["/".join(part[start : len(part) - stop]) or part[-1] for part in parts]


def _summary(runs: Sequence[Logged], now: float) -> Html:
    header = ("run", "", "steps", "parameters", "training loss", "validation loss", "best", "tokens/s", "time in steps")
    rows = []
    for index, run in enumerate(runs):
        told, valid = state(run, now), run.curve("valid_loss").ys
        swatch = element("span", _class="swatch", style=f"background:{color_of(index)}")
        parameters = number(part(run.start, "plan").get("parameters"))
        rows.append(
            [
                Html(swatch + text(run.name)),
                badge(told.word, told.mood),
                f"{run.last_step:,}",
                "" if parameters is None else short_number(parameters),
                _loss(recent(run, "loss")),
                _loss(valid[-1] if valid else None),
                _loss(min(valid) if valid else None),
                short_number(typical(run, "tokens_per_second") or 0.0),
                duration(sum(run.curve("seconds").ys)),
            ]
        )
    return table(header, rows, right=range(2, len(header)))


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _differences(runs: Sequence[Logged]) -> list[Html]:
    """Fields of the configurations that are not the same in all runs."""
    given = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for fields in given for key in fields if key not in _PLACES)
    rows = [
        [key, *(fields.get(key, "") for fields in given)]
        for key in keys
        if len({fields.get(key, "") for fields in given}) > 1
    ]
    if not rows:
        return []
    return [section("Differences", table(("field", *(run.name for run in runs)), rows))]


def _flat(config: str) -> dict[str, str]:
    try:
        tree = yaml.safe_load(config)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    return {
        f"{name}.{key}": str(value)
        for name, fields in tree.items()
        if isinstance(fields, dict)
        for key, value in fields.items()
        if not _is_nested(value)
    }


def _is_nested(value: Any) -> bool:
    """Lists within lists: no field has them, and written out a few lines of YAML can fill a disk with them."""
    items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return any(isinstance(item, list | dict) for item in items)


def _one(run: Logged) -> Html:
    rest = [*plan_sections(run), *history_sections(run)]
    if run.config:
        rest.append(fold("Every field of the configuration", searchable(run.config, "search the configuration")))
    return fold(f"{run.name}: {model_line(run) or run.folder}", element("div", *rest, _class="inside"))
