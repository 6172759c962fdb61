"""What a run left in its log folder, read whatever state it is in: running, done, killed in the middle of a line.

    logged = read_run(Path("logs"))
    logged.curve("loss").ys[-1]

Figures of a step become curves over the steps, by their name in metrics.jsonl; those that lie deeper get a path, such
as `tokens_by_source/books`.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from megatron_tlm.errors import ConfigError
from megatron_tlm.report.facts import fits, fitting, number

METRICS_NAME, EVENTS_NAME, CONFIG_NAME, HEARTBEATS = "metrics.jsonl", "events.jsonl", "config.yaml", "heartbeats"
ENDINGS = ("finish", "stop", "failure")
_DEEPEST = 3  # figures within figures; what lies deeper no run writes

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """Values over steps; both ascend together in the file's order."""

    xs: "array[float]" = field(default_factory=lambda: array("d"))
    ys: "array[float]" = field(default_factory=lambda: array("d"))

    def __bool__(self) -> bool:
        return len(self.xs) > 0


NOTHING = Curve()


@dataclass(frozen=True)
class Logged:
    """A run's figures and history. `written` is when the newest of its files was, in seconds since 1970."""

    name: str
    folder: Path
    curves: Mapping[str, Curve]
    events: tuple[Event, ...]
    config: str
    written: float
    heartbeats: tuple[Mapping[str, Any], ...] = ()
    stages: Mapping[str, Any] = field(default_factory=dict)  # the last line with times of pipeline stages

    def curve(self, name: str) -> Curve:
        return self.curves.get(name, NOTHING)

    def named(self, prefix: str) -> dict[str, Curve]:
        """The curves whose name begins so."""
        return {name: curve for name, curve in self.curves.items() if name.startswith(prefix)}

    def of_kind(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.get("event") in kinds]

    @cached_property
    def start(self) -> Event:
        """What the run last said of itself when it started; empty where that was not logged."""
        return next(iter(reversed(self.of_kind("start"))), {})

    @cached_property
    def ending(self) -> Event | None:
        """How it ended, if it did and was not started again since."""
        last = next((event for event in reversed(self.events) if event.get("event") in ("start", *ENDINGS)), None)
        return None if last is None or last["event"] == "start" else last

    @property
    def last_step(self) -> int:
        """The last one that was logged."""
        steps = self.curve("loss").xs
        return int(steps[-1]) if steps else 0


def read_run(folder: Path, name: str | None = None) -> Logged:
    """ConfigError where the folder is none, or holds no figures of a run."""
    metrics = folder / METRICS_NAME
    if not folder.is_dir():
        raise ConfigError(f"LOGDIR = {folder} is no folder; give the --log-dir of a run")
    if not metrics.is_file() and not (folder / EVENTS_NAME).is_file():
        raise ConfigError(
            f"LOGDIR = {folder} holds 0 files of a run, {METRICS_NAME} or {EVENTS_NAME} is needed; give the --log-dir "
            "of a run"
        )
    columns: dict[str, Curve] = {}
    stages: Mapping[str, Any] = {}
    for record in records(metrics):
        step: Any = record.get("step")
        if not fits(step, int):
            continue
        found = dict(_figures(record))
        if "pipeline-seconds" in found:
            stages = {"step": step, **found}
        for key, value in found.items():
            curve = columns.setdefault(key, Curve())
            curve.xs.append(step)
            curve.ys.append(value)
    config = folder / CONFIG_NAME
    files = [path for path in (metrics, folder / EVENTS_NAME, config) if path.is_file()]
    beats = (_beat(path) for path in sorted((folder / HEARTBEATS).glob("rank-*.json")))
    return Logged(
        name=name or folder.resolve().name,
        folder=folder,
        curves=columns,
        events=tuple(map(fitting, records(folder / EVENTS_NAME))),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        written=max(path.stat().st_mtime for path in files),
        heartbeats=tuple(beat for beat in beats if beat),
        stages=stages,
    )


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of lines; what is no object, such as a line that was cut short, is passed over."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def _figures(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if key == "step" and not prefix:
            continue
        figure = number(value)
        if figure is not None:
            yield prefix + key, figure
        elif depth == _DEEPEST:
            continue
        elif isinstance(value, dict):
            yield from _figures(value, f"{prefix}{key}/", depth + 1)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _figures(item, f"{prefix}{key}/{place}/", depth + 1)


def _beat(path: Path) -> dict[str, Any]:
    try:
        beat = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return beat if isinstance(beat, dict) else {}
