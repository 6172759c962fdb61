"""A small file per rank that says what the rank is at, for monitors outside: log_dir/heartbeats/rank-00003.json.

    {"rank": 3, "world_size": 8, "host": "node1", "pid": 4711, "phase": "training", "step": 120, "since": 1.76e9,
     "time": 1.76e9}

`phase` is starting, training, evaluating, saving, done or failed; `since` when it began, `time` when the file was
written, both in seconds since 1970. It is written at every change of phase, and every few seconds while steps are
taken, by whoever takes them: a rank that hangs stops writing. Renamed into place, so a reader sees a whole file.
"""

import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.logs.log_guard import LogGuard

HEARTBEATS = "heartbeats"
EVERY_SECONDS = 5.0

Phase = Literal["starting", "training", "evaluating", "saving", "done", "failed"]


class Heartbeat:
    """Of one rank, for as long as it runs; without a folder nothing is written."""

    def __init__(self, folder: Path | None, rank: int, world_size: int, every_seconds: float = EVERY_SECONDS) -> None:
        self._folder, self._every = folder, every_seconds
        self._guard = LogGuard(self._say)
        self._about: dict[str, Any] = {"rank": rank, "world_size": world_size}
        self._about |= {"host": socket.gethostname(), "pid": os.getpid()}
        self._phase: Phase | None = None
        self._step, self._since, self._written = 0, 0.0, -every_seconds

    def __enter__(self) -> Self:
        if self._folder is not None and self._about["rank"] == 0:
            _forget_ranks_from(self._folder, self._about["world_size"])
        self.beat("starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.beat("done" if error is None else "failed")

    def beat(self, phase: Phase, step: int | None = None) -> None:
        """`step` counts the finished ones (default: as many as were said last)."""
        now = time.monotonic()
        self._step = self._step if step is None else step
        changed = phase != self._phase
        if self._folder is None or not (changed or now - self._written >= self._every):
            return
        if changed:
            self._phase, self._since = phase, time.time()
        self._written = now
        folder = self._folder
        self._guard.write(HEARTBEATS, lambda: self._write(folder))

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = heartbeat_file(folder, self._about["rank"])
        aside = file.with_name(f".{file.name}.new")
        told = {"phase": self._phase, "step": self._step, "since": round(self._since, 3), "time": round(time.time(), 3)}
        aside.write_text(json.dumps(self._about | told) + "\n", encoding="utf-8")
        os.replace(aside, file)

    def _say(self, text: str) -> None:
        # One voice a node: its ranks write to the same disk.
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return
        with suppress(OSError):
            print(f"rank {self._about['rank']}: {text}", file=sys.stderr, flush=True)


def heartbeat_folder(config: LoggingConfig) -> Path | None:
    """Where the files lie; None where nothing is logged to disk."""
    if config.heartbeat_dir is not None:
        return Path(config.heartbeat_dir)
    return None if config.log_dir is None else Path(config.log_dir) / HEARTBEATS


def heartbeat_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.json"


def _forget_ranks_from(folder: Path, world_size: int) -> None:
    """Files of ranks that a former run had and this one has not: a monitor would take them for silent ones."""
    with suppress(OSError):
        for file in folder.glob("rank-*.json"):
            number = re.fullmatch(r"rank-(\d+)\.json", file.name)
            if number and int(number[1]) >= world_size:
                file.unlink()
