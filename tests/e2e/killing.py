"""torchrun, on one machine or on a node each, whose processes are killed at chosen moments of the run.

What is killed is told by what the ranks themselves leave: their heartbeats, the partial folders of saves and indices.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatron_tlm.checkpoint.load import check_hashes
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.config.schema import Config
from tests.e2e.commands import PACKAGE, ROOT
from tests.namespaces import Node

PATIENCE_SECONDS = 400.0  # for a busy machine
_LOOK_SECONDS = 0.004


@dataclass
class Torchrun:
    """One torchrun and what it says, in a file; every process that it brings forth carries `mark`."""

    process: "subprocess.Popen[bytes]"
    console: Path
    node: Node | None = None

    @property
    def said(self) -> str:
        return self.console.read_text(errors="replace")

    def ranks(self) -> dict[int, int]:
        """Process -> rank, of its living workers."""
        children, found = f"/proc/{self.process.pid}/task/{self.process.pid}/children", {}
        with contextlib.suppress(OSError):
            for pid in map(int, Path(children).read_text().split()):
                for variable in environment_of(pid):
                    if variable.startswith("RANK="):
                        found[pid] = int(variable.removeprefix("RANK="))
        return found


@dataclass
class Launch:
    """A run from outside: its torchruns, now and before, and the mark of all its processes."""

    folder: Path
    words: Sequence[str]
    options: Sequence[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    torchruns: list[Torchrun] = field(default_factory=list)
    former: set[int] = field(default_factory=set)

    def start(self, node: Node | None = None, own: Sequence[str] = ()) -> Torchrun:
        command = [sys.executable, "-m", "torch.distributed.run", *self.options, *own, *PACKAGE, *self.words]
        fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TLM_MARK": self.mark}
        fixed |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        fixed |= {} if node is None else {"GLOO_SOCKET_IFNAME": "eth0"}
        console = self.folder / f"console-{len(list(self.folder.glob('console-*')))}"
        with console.open("wb") as out:
            process = subprocess.Popen(
                command if node is None else node.command(command),
                cwd=self.folder,
                env={**os.environ, **fixed},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.torchruns.append(Torchrun(process, console, node))
        return self.torchruns[-1]

    def new_ranks(self, count: int) -> dict[int, int]:
        """Rank -> process, once `count` ranks are there that were not there at the last call."""
        found: dict[int, int] = {}

        def all_there() -> bool:
            found.clear()
            for torchrun in self.torchruns:
                found.update({rank: pid for pid, rank in torchrun.ranks().items() if pid not in self.former})
            return len(found) == count

        self.until(all_there, f"{count} new ranks")
        self.former |= set(found.values())
        return dict(sorted(found.items()))

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            ended = [run.process.poll() for run in self.torchruns]
            assert None in ended, f"all ended with {ended} before {what}\n{self.said}"
            assert time.monotonic() < deadline, f"never {what}\n{self.said}"
            time.sleep(_LOOK_SECONDS)

    @property
    def said(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.consoles))

    @property
    def consoles(self) -> list[Path]:
        return list(self.folder.glob("console-*"))

    def end(self) -> list[int]:
        """Every torchrun's exit code, once all have ended; whoever is left then is killed."""
        try:
            return [torchrun.process.wait(timeout=PATIENCE_SECONDS) for torchrun in self.torchruns]
        finally:
            for torchrun in self.torchruns:
                torchrun.process.kill()

    def left(self) -> list[int]:
        """Processes of the run that are still there."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [pid for pid in pids if f"TLM_MARK={self.mark}" in environment_of(pid)]


def environment_of(pid: int) -> list[str]:
    """NAME=value of a process; nothing of one that is gone or has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@dataclass(frozen=True)
class Killed:
    """What was wanted, which rank it was, what that one said last that it was doing, and seconds since its start."""

    moment: str
    rank: int
    phase: str
    seconds: float


@dataclass
class Hunter:
    """Waits for a moment of the run's newest start, and kills a rank there."""

    launch: Launch
    config: Config
    chance: random.Random
    start_seconds: float = 6.0  # from a rank's start to its first step, as last seen
    kills: list[Killed] = field(default_factory=list)
    newest: list[Path | None] = field(default_factory=list)  # whole checkpoint at every start

    def new_ranks(self, count: int) -> dict[int, int]:
        """Those of the launch; what they may go on from is looked at, every hash of it: none may be half."""
        ranks = self.launch.new_ranks(count)
        found = step_directories(Path(self.config.checkpoint.save or ""))
        for directory in found:
            check_hashes(directory, read_manifest(directory))
        self.newest.append(next(iter(found), None))
        return ranks

    def kill(self, moment: str, ranks: Mapping[int, int]) -> None:
        began = time.monotonic()
        victim = self.wait(moment, ranks)
        phase = self.phase(victim, ranks[victim])
        os.kill(ranks[victim], signal.SIGKILL)
        self.kills.append(Killed(moment, victim, phase, round(time.monotonic() - began, 1)))

    def wait(self, moment: str, ranks: Mapping[int, int]) -> int:
        """Until it is there; the rank to kill."""
        victim, began = self.chance.choice(list(ranks)), time.monotonic()
        pid = ranks[victim]
        if moment == "start":
            time.sleep(self.chance.uniform(0, self.start_seconds))
            return victim
        if moment == "index":
            # Long before they look for it: they have torch to import.
            shutil.rmtree(self.config.data.data_cache_path or "", ignore_errors=True)
            return self._builder(ranks)
        self.launch.until(lambda: self.phase(victim, pid) != "none", f"a sign of rank {victim}")
        if moment == "groups":
            time.sleep(self.chance.uniform(0, 0.3 * self.start_seconds))
            return victim
        self.launch.until(lambda: self.phase(victim, pid) not in ("none", "starting"), f"a step of rank {victim}")
        self.start_seconds = time.monotonic() - began
        if moment == "step":
            reached = self.steps() + self.chance.randint(1, 10)
            self.launch.until(lambda: self.steps() >= reached, f"step {reached}")
            time.sleep(self.chance.uniform(0, 0.2))
        elif moment == "save":
            root = Path(self.config.checkpoint.save or "")
            self.launch.until(lambda: any(root.glob(".step-*.partial")), "a save")
            time.sleep(self.chance.uniform(0, 0.03))
        else:
            self.launch.until(lambda: self.phase(victim, pid) == "evaluating", f"an evaluation on rank {victim}")
        return victim

    def _builder(self, ranks: Mapping[int, int]) -> int:
        """The rank that builds a sample order, which is why its number stands in the name of a folder."""
        found: list[int] = []

        def building() -> bool:
            for path in Path(self.config.data.data_cache_path or "").glob(".*.partial"):
                found.extend(rank for rank, pid in ranks.items() if f".{pid}." in path.name)
            return bool(found)

        self.launch.until(building, "an index")
        return found[0]

    def steps(self) -> int:
        """Taken so far, by the log."""
        file = Path(self.config.logging.log_dir or "") / "metrics.jsonl"
        return file.read_text().count('"loss"') if file.exists() else 0

    def phase(self, rank: int, pid: int) -> str:
        """What the heartbeat of that process says; "none" where it has not written one yet."""
        file = Path(self.config.logging.log_dir or "") / "heartbeats" / f"rank-{rank:05d}.json"
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(file.read_text())
            return str(told["phase"]) if told["pid"] == pid else "none"
        return "none"
