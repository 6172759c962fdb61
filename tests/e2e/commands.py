"""Starting the commands as a user does: a process of their own, or ranks under torchrun."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("-m", "megatron_tlm")
TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def succeeded(self) -> "Outcome":
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


def megatron_tlm(*words: object, cwd: Path, **environment: str) -> Outcome:
    """`megatron-tlm WORDS` in a folder."""
    return _run([sys.executable, *PACKAGE, *map(str, words)], cwd, environment)


def torchrun(ranks: int, *words: object, cwd: Path) -> Outcome:
    """`torchrun --standalone --nproc-per-node RANKS -m megatron_tlm WORDS` in a folder."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return _run([*launcher, *PACKAGE, *map(str, words)], cwd, {})


def ranks(
    count: int,
    *words: object,
    cwd: Path,
    each: Callable[[int], tuple[str, ...]] = lambda rank: (),
    **environment: str,
) -> list[Outcome]:
    """The same command on several ranks without a launcher between, so that each rank's exit code is seen; `each` are
    words of one rank's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def one(rank: int) -> Outcome:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **meeting, **environment}
        return megatron_tlm(*words, *each(rank), cwd=cwd, **own)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def _run(command: list[str], cwd: Path, environment: Mapping[str, str]) -> Outcome:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # One thread a rank, as torchrun would set it; CUDA hidden, so that these runs are the same on every machine.
    fixed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **fixed, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
