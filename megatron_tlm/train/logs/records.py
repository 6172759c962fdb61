"""Files of one JSON object a line that a run adds to: metrics.jsonl, events.jsonl."""

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from megatron_tlm.train.logs.log_guard import LogGuard


class Records:
    """A file that grows by lines; a line that a kill cut short is left to readers to pass over."""

    def __init__(self, path: Path, guard: LogGuard) -> None:
        self.path, self._guard = path, guard
        mend_last_line(path)
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def append(self, record: dict[str, Any]) -> None:
        line, write = json.dumps(finite(record)) + "\n", self._file.write
        self._guard.write(self.path.name, lambda: write(line))

    def close(self) -> None:
        self._guard.close(self.path.name, self._file.close)


@dataclass(frozen=True)
class Lost:
    """What a run that goes on from an older step has to do again, and how long nobody wrote its metrics."""

    steps_again: int = 0
    seconds_again: float = 0.0
    seconds_down: float = 0.0


def take_back(metrics: Path, last_step: int) -> Lost:
    """Drops the lines of later steps, which the run is about to take again, and a line that a kill cut short."""
    if not metrics.exists():
        return Lost()
    down = max(time.time() - metrics.stat().st_mtime, 0.0)
    kept, again = [], []
    for line, record in _parsed(metrics):
        if record.get("step", 0) <= last_step:
            kept.append(line + "\n")
        elif "seconds" in record:
            again.append(record["seconds"])
    aside = metrics.with_name(f".{metrics.name}.new")
    aside.write_text("".join(kept), encoding="utf-8")
    os.replace(aside, metrics)
    return Lost(len(again), round(sum(again), 3), round(down, 3))


def mend_last_line(path: Path) -> None:
    """Ends a line that was cut short, so that what is written next does not become part of it."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def finite(value: Any) -> Any:
    """The same with None for what JSON has no number for; a perplexity can be infinite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield line, record
