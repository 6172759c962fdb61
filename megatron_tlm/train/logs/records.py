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

    def go_back(self, last_step: int) -> None:
        """Drops the lines of later steps."""

        def rewrite() -> None:
            self._file.close()
            take_back(self.path, last_step)
            self._file = self.path.open("a", encoding="utf-8", buffering=1)

        self._guard.write(self.path.name, rewrite)

    def close(self) -> None:
        self._guard.close(self.path.name, self._file.close)


@dataclass(frozen=True)
class Lost:
    """What a run that goes on from an older step has to do again, and how long nobody wrote its metrics."""

    steps_again: int = 0
    seconds_again: float = 0.0
    seconds_down: float = 0.0


def take_back(metrics: Path, last_step: int) -> Lost:
    """Drops the lines of later steps, which the run is about to take again, and those that a kill or a disk damaged."""
    if not metrics.exists():
        return Lost()
    down = max(time.time() - metrics.stat().st_mtime, 0.0)
    again: list[float] = []
    aside = metrics.with_name(f".{metrics.name}.new")
    try:
        with aside.open("wb") as kept:
            for line, record in parsed(metrics):
                if record["step"] <= last_step:
                    kept.write(line)
                elif isinstance(record.get("seconds"), float):
                    again.append(record["seconds"])
        os.replace(aside, metrics)
    except OSError:
        # On a full disk what is half written would be in the way of everything else.
        aside.unlink(missing_ok=True)
        raise
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


def parsed(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Every whole line of a metrics.jsonl and its object, which says its step; others are passed over."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield line.rstrip(b"\n") + b"\n", record
