"""Starting a study's runs, several at once, each a process of its own that goes on from its checkpoint.

    study run ----- python -m megatron_tlm train --config OUT/runs/uniform/lr-0.001/seed-1/config.yaml
               `--- torchrun --standalone --nproc-per-node R -m megatron_tlm train --config ...

A run holds its own lock for as long as it lives, so several studies on one folder share its runs out. When the study
dies the kernel sends its runs SIGTERM: they save and leave.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from megatron_tlm.config.dump import dump
from megatron_tlm.config.load import load_file
from megatron_tlm.errors import ConfigError
from megatron_tlm.study.choice import snapshot
from megatron_tlm.study.design import RUNS, Design, RunId
from megatron_tlm.study.record import differences, run_facts
from megatron_tlm.study.runs import (
    CONFIG_NAME,
    FAILED_NAME,
    OUTPUT_NAME,
    State,
    read_run,
    replace_text,
    try_lock,
    write_failure,
)

POLL_SECONDS, RESCAN_SECONDS = 0.2, 10.0
# Ends from outside, after which a run goes on; one that ends so without a step more than before would for ever.
STOPPED = (0, -signal.SIGTERM, -signal.SIGKILL)
_PR_SET_PDEATHSIG = 1

Command = Callable[[Path, int], Sequence[str]]


def train_command(config: Path, ranks: int) -> list[str]:
    """One ordinary training run."""
    train = ["-m", "megatron_tlm", "train", "--config", str(config)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return [sys.executable, *launcher, *train]


@dataclass(frozen=True)
class Resources:
    """How many runs at once, and what each may use; `devices` are CUDA's, empty on a CPU."""

    parallel: int
    threads: int
    devices: tuple[str, ...] = ()

    def environment(self, slot: int, ranks: int) -> dict[str, str]:
        """What differs from this process's own."""
        found = {"OMP_NUM_THREADS": str(self.threads)}
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices[slot * ranks : (slot + 1) * ranks])
        return found


@dataclass
class _Started:
    run: RunId
    process: "subprocess.Popen[bytes]"
    former_step: int
    signals: int = 0  # of those that the study got, handed on


@dataclass
class Runner:
    """Starts what is pending until nothing is; `say` hears of starts and ends."""

    design: Design
    resources: Resources
    say: Callable[[str], None]
    command: Command = train_command
    _slots: dict[int, _Started] = field(default_factory=dict)
    _signals: int = 0

    def run(self) -> bool:
        """True when every run is done or failed; False when it was asked to stop, with its runs saved."""
        former = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            rescan = time.monotonic()
            while True:
                ended = self._collect()
                self._hand_on_signals()
                if self._signals and not self._slots:
                    return False
                if not self._signals and (ended or time.monotonic() >= rescan):
                    if not self._fill():
                        return True
                    rescan = time.monotonic() + RESCAN_SECONDS
                time.sleep(POLL_SECONDS)
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _fill(self) -> bool:
        """Starts runs in free slots; whether anything is left to wait for, here or in another study's hands."""
        free = [slot for slot in range(self.resources.parallel) if slot not in self._slots]
        if not free:
            return True
        now = snapshot(self.design)
        elsewhere = any(result.state is State.RUNNING for result in now.results.values())
        for run in now.pending:
            if not free or self._signals:
                break
            if self._start(run, free[0]):
                del free[0]
            else:
                elsewhere = True  # another study was faster, and what it has done may ask for more
        return bool(self._slots) or elsewhere

    def _start(self, run: RunId, slot: int) -> bool:
        folder = self.design.run_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(folder)
        if lock is None:
            return False
        with lock:
            result = read_run(self.design, run)
            if result.state in (State.FINISHED, State.FAILED):
                return False  # by another study, since the snapshot was taken
            step = result.step
            write_config(self.design, run)
            self._slots[slot] = _Started(run, self._launch(folder, slot, lock), step)
        self.say(f"{run.path}: {f'goes on, it had come to step {step}' if step else 'started'}")
        return True

    def _launch(self, folder: Path, slot: int, lock: BinaryIO) -> "subprocess.Popen[bytes]":
        ranks = self.design.file.ranks
        environment = {**os.environ, **self.resources.environment(slot, ranks)}
        with (folder / OUTPUT_NAME).open("ab") as output:
            return subprocess.Popen(
                self.command(folder / CONFIG_NAME, ranks),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                preexec_fn=_stop_with_parent if sys.platform == "linux" else None,
            )

    def _collect(self) -> bool:
        """Whether a run has ended."""
        ended = {slot: code for slot, own in self._slots.items() if (code := own.process.poll()) is not None}
        for slot, code in ended.items():
            self._ended(self._slots.pop(slot), code)
        return bool(ended)

    def _ended(self, started: _Started, code: int) -> None:
        result = read_run(self.design, started.run)
        if result.state is State.FINISHED:
            self.say(f"{started.run.path}: finished, validation loss {result.loss:.4f}")
        elif self._signals or (code in STOPPED and result.step > started.former_step):
            self.say(f"{started.run.path}: interrupted after step {result.step} of {result.train_steps}")
        else:
            write_failure(self.design.run_folder(started.run), code)
            self.say(f"{started.run.path}: failed, {read_run(self.design, started.run).reason}")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # No more: a run that is being started at this moment is in no slot yet.
        self._signals += 1

    def _hand_on_signals(self) -> None:
        for started in self._slots.values():
            while started.signals < self._signals:
                started.process.terminate()
                started.signals += 1


def write_config(design: Design, run: RunId) -> None:
    """The run's config.yaml; ConfigError where another run began in this folder."""
    config, path = design.config(run), design.run_folder(run) / CONFIG_NAME
    if path.exists():
        changes = differences(run_facts(load_file(path)), run_facts(config))
        if changes:
            raise ConfigError(f"{path} = another run ({'; '.join(changes)}); give the study another --output")
    replace_text(path, dump(config))


def forget_failures(design: Design) -> int:
    """Lets failed runs be tried again from their last checkpoint; how many."""
    found = list((design.folder / RUNS).rglob(FAILED_NAME))
    for path in found:
        path.unlink()
    return len(found)


def _stop_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
