#!/usr/bin/env python3
"""A long run on this machine's CPUs, with saves, evaluations, kills and restarts: does anything grow or slow down?

    python tools/soak.py --steps 1000 --kills 3 runs/soak

Starts four ranks under torchrun (tensor 2 x pipeline 2, a tiny model), kills a random one `--kills` times, and watches
from outside: resident memory of the ranks, files on disk, seconds per step. Ends with 1 where one of these is not flat.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

RANKS = 4
LOOK_SECONDS = 2.0
FLAGS = """
    --preset tiny --mock-data --vocab-size 64 --seq-length 32 --hidden-size 32 --num-attention-heads 2
    --num-query-groups 2 --ffn-hidden-size 64 --width-multiple 8 --num-layers 4 --micro-batch-size 1
    --global-batch-size 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --eval-interval 50
    --eval-iters 2 --save-interval 25 --keep-last 3 --log-interval 50 --distributed-timeout-minutes 5
"""
GROWTH = 1.05  # of memory, from the first to the last quarter of a start
SLOWDOWN = 1.5  # of the median step, between quarters of the run: the machine may be shared


@dataclass
class Seen:
    """What was seen from outside: megabytes of all ranks by start, files, and when something was killed."""

    memory: list[list[float]] = field(default_factory=lambda: [[]])
    files: list[int] = field(default_factory=list)
    killed_at: list[int] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    begin = time.monotonic()
    code, seen = soak(options.folder, options.steps, options.kills, options.seed)
    return report(options.folder, options.steps, code, seen, time.monotonic() - begin)


def soak(folder: Path, steps: int, kills: int, seed: int) -> tuple[int, Seen]:
    """Runs to the end; kills fall on random steps, one in each of `kills` equal parts of the run."""
    chance, seen = random.Random(seed), Seen()
    part = steps // (kills + 1)
    due = [part * number + chance.randrange(part) + 1 for number in range(kills)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += ["--max-restarts", str(kills), "-m", "megatron_tlm", "train", *FLAGS.split()]
    command += ["--save", "ck", "--log-dir", "log", "--train-iters", str(steps)]
    fixed = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "console.txt").open("w") as console:
        run = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **fixed}, stdout=console, stderr=subprocess.STDOUT
        )
        while run.poll() is None:
            time.sleep(LOOK_SECONDS)
            look(folder, run.pid, seen)
            ranks = children(run.pid)
            if due and ranks and last_step(folder) >= due[0]:
                seen.killed_at.append(due.pop(0))
                os.kill(chance.choice(ranks), signal.SIGKILL)
                seen.memory.append([])
    return run.returncode, seen


def look(folder: Path, launcher: int, seen: Seen) -> None:
    ranks = children(launcher)
    if len(ranks) == RANKS and last_step(folder):
        seen.memory[-1].append(sum(resident_megabytes(rank) for rank in ranks))
    seen.files.append(sum(len(names) for _, _, names in os.walk(folder)))


def children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def resident_megabytes(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "log" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if '"loss"' in line and line.endswith("}")]


def last_step(folder: Path) -> int:
    taken = metrics(folder)
    return int(taken[-1]["step"]) if taken else 0


def report(folder: Path, steps: int, code: int, seen: Seen, seconds: float) -> int:
    taken = metrics(folder)
    quarter = max(len(taken) // 4, 1)
    medians = [
        statistics.median(record["seconds"] for record in taken[at : at + quarter])
        for at in range(0, 4 * quarter, quarter)
    ]
    longest = max(seen.memory, key=len)
    # The first quarter of a start holds what is made once: buffers, the first save's copy.
    first = statistics.median(longest[len(longest) // 4 : len(longest) // 2] or longest or [0.0])
    last = statistics.median(longest[-max(len(longest) // 4, 1) :] or [0.0])
    whole = [record["step"] for record in taken] == list(range(1, steps + 1))
    print(f"exit code {code}, {seconds:.0f} s, every step once: {whole}, killed at steps {seen.killed_at}")
    print(
        f"memory of {RANKS} ranks: {first:.0f} MB in the second quarter of the longest start, {last:.0f} MB in its last"
    )
    print(f"files: at most {max(seen.files)}, {seen.files[-1]} at the end")
    print("median step by quarter: " + ", ".join(f"{1000 * median:.0f} ms" for median in medians))
    flat = last <= GROWTH * first and max(medians) <= SLOWDOWN * min(medians)
    return 0 if code == 0 and whole and flat else 1


if __name__ == "__main__":
    sys.exit(main())
