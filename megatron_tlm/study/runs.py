"""What a run's folder says of it: nothing else is remembered, so there is nothing that a kill could leave untrue.

OUT/study.json                    what the study was when it began
OUT/runs/ARM/lr-0.001/seed-1/
    config.yaml                   of the run
    output.txt                    its words, of every start
    log/metrics.jsonl             steps and evaluations; the last one there: finished
    checkpoints/                  to go on from
    failed.json                   an end that trying again would not change
    .lock                         held by the run while it goes, whoever started it
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from megatron_tlm.report.facts import fits, number
from megatron_tlm.report.read import records
from megatron_tlm.study.design import Design, RunId

CONFIG_NAME, OUTPUT_NAME, FAILED_NAME, LOCK_NAME = "config.yaml", "output.txt", "failed.json", ".lock"
METRICS = Path("log") / "metrics.jsonl"


class State(Enum):
    """Where a run stands."""

    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class Point:
    """A loss (nats per token) after so many steps and tokens; None where it left the numbers."""

    step: int
    tokens: int
    loss: float | None


@dataclass(frozen=True)
class RunResult:
    """What a run has come to. `valid` are its evaluations; `seconds` those of its steps."""

    run: RunId
    state: State
    step: int
    train_steps: int
    train: tuple[Point, ...]
    valid: tuple[Point, ...]
    seconds: float
    reason: str = ""

    @property
    def loss(self) -> float | None:
        """The validation loss at the end; None before, and where it is no number."""
        if self.state is not State.FINISHED:
            return None
        return self.valid[-1].loss

    @property
    def step_seconds(self) -> float:
        return self.seconds / len(self.train) if self.train else math.nan


def read_run(design: Design, run: RunId) -> RunResult:
    """The run as its folder has it."""
    folder = design.run_folder(run)
    steps = design.train_steps[run.group, run.arm]
    train, valid, seconds = read_metrics(folder / METRICS)
    step = train[-1].step if train else 0
    failure = read_failure(folder)
    if valid and valid[-1].step == steps:
        # A loss that is no number compares with nothing.
        state = State.FINISHED if valid[-1].loss is not None else State.FAILED
        reason = "" if state is State.FINISHED else f"the validation loss of step {steps} is not finite"
        return RunResult(run, state, step, steps, train, valid, seconds, reason)
    if failure is not None:
        return RunResult(run, State.FAILED, step, steps, train, valid, seconds, failure)
    state = State.RUNNING if is_locked(folder) else State.INTERRUPTED if step else State.WAITING
    return RunResult(run, state, step, steps, train, valid, seconds)


def read_metrics(path: Path) -> tuple[tuple[Point, ...], tuple[Point, ...], float]:
    """Training losses, validation losses, and the seconds that the steps took; empty without the file.

    A line that a run did not write so, being cut short or damaged, is passed over.
    """
    train: list[Point] = []
    valid: list[Point] = []
    seconds, tokens = 0.0, 0
    for record in records(path):
        if not fits(record, {"step": int}):
            continue
        if _is_loss(record, "loss") and fits(record, {"tokens": int, "seconds": float}):
            tokens = record["tokens"]
            seconds += record["seconds"]
            train.append(Point(record["step"], tokens, number(record["loss"])))
        elif _is_loss(record, "valid_loss"):
            valid.append(Point(record["step"], tokens, number(record["valid_loss"])))
    return tuple(train), tuple(valid), seconds


def _is_loss(record: Mapping[str, Any], name: str) -> bool:
    """Whether a loss stands there, be it one that left the numbers."""
    return name in record and (record[name] is None or isinstance(record[name], float))


def read_failure(folder: Path) -> str | None:
    """Why the run failed; None where it did not."""
    try:
        record = json.loads((folder / FAILED_NAME).read_text(encoding="utf-8"))
        return f"exit code {record['exit_code']}: {record['words']}"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"why is not known, {FAILED_NAME} is damaged"


def write_failure(folder: Path, exit_code: int) -> None:
    """Keeps the exit code and the last line that the run said."""
    record = {"exit_code": exit_code, "words": last_words(folder / OUTPUT_NAME)}
    replace_text(folder / FAILED_NAME, json.dumps(record) + "\n")


def last_words(output: Path) -> str:
    """The last line with an error in it, or the last one."""
    try:
        lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    except FileNotFoundError:
        return "it said nothing"
    told = [line for line in lines if line]
    errors = [line for line in told if "error" in line.lower()]
    return (errors or told or ["it said nothing"])[-1]


def replace_text(path: Path, text: str) -> None:
    """The file is whole whenever it has its name."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def try_lock(folder: Path) -> BinaryIO | None:
    """The run's lock, held as long as this file is open here or in a process that inherited it; None if it is taken."""
    file = (folder / LOCK_NAME).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_locked(folder: Path) -> bool:
    """Whether a process holds the run's lock."""
    if not (folder / LOCK_NAME).exists():
        return False
    file = try_lock(folder)
    if file is None:
        return True
    file.close()
    return False
