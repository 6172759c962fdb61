"""A run whose ranks are killed again and again, and started anew as torchrun would: with a higher restart count.

Forked, as in `launching`: real restarts of torchrun cost ten seconds each, and one is tried in tests/e2e.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from megatron_tlm.checkpoint.load import check_hashes
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.config.schema import Config
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from tests.equivalence.launching import Launch, launch
from tests.equivalence.training import VOCAB

MOMENTS = ("start", "save", "step", "evaluation")
_POLL_SECONDS = 0.004
_PATIENCE_SECONDS = 240.0  # for a busy machine


def random_corpus(folder: Path, documents: int) -> str:
    """The prefix of a pair of documents of 5 to 59 ids; the same ids at every call."""
    folder.mkdir()
    numbers = np.random.default_rng(5)
    with IndexedDatasetWriter(folder / "corpus", np.dtype(np.uint16)) as writer:
        for length in numbers.integers(5, 60, size=documents):
            writer.add_document(numbers.integers(0, VOCAB, size=length))
    return str(folder / "corpus")


@dataclass
class Survived:
    """Every attempt, and what was killed in it: the moment, the rank."""

    attempts: list[Launch] = field(default_factory=list)
    kills: list[tuple[str, int]] = field(default_factory=list)


def survive(config: Config, ranks: int, kills: int, seed: int) -> Survived:
    """Kills a random rank in each of `kills` starts, at one kind of moment after the other; then lets the run end."""
    chance, story = random.Random(seed), Survived()
    for attempt in range(kills + 1):

        def before(rank: int, count: int = attempt) -> None:
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(count)

        moment, victim, delay = MOMENTS[attempt % len(MOMENTS)], chance.randrange(ranks), chance.random()
        last = attempt == kills

        def kill(pids: list[int], moment: str = moment, victim: int = victim, delay: float = delay) -> None:
            _wait_for(moment, config, delay)
            os.kill(pids[victim], signal.SIGKILL)
            time.sleep(0.1)
            for pid in pids[:victim] + pids[victim + 1 :]:
                os.kill(pid, signal.SIGTERM)  # as torchrun does once it sees one gone; they are zombies at worst

        meanwhile = (lambda pids: None) if last else kill
        ended = launch(config, ranks, before=before, meanwhile=meanwhile, timeout_seconds=_PATIENCE_SECONDS)
        story.attempts.append(ended)
        if not last:
            assert ended.codes[victim] == -signal.SIGKILL, "the run was over before it could be killed"
            assert all(code != 0 for code in ended.codes), ended.codes
            story.kills.append((moment, victim))
        for directory in step_directories(Path(config.checkpoint.save or "")):
            check_hashes(directory, read_manifest(directory))
    return story


def _wait_for(moment: str, config: Config, delay: float) -> None:
    """Until the run is where it shall be killed; `delay`, from 0 to 1, moves that within the moment."""
    root, metrics = Path(config.checkpoint.save or ""), Path(config.logging.log_dir or "") / "metrics.jsonl"
    begun = _steps(metrics)
    if moment == "start":
        time.sleep(1.5 * delay)
        return
    _until(lambda: _steps(metrics) not in (0, begun))
    if moment == "save":
        _until(lambda: any(root.glob(".step-*.partial")))
        time.sleep(0.03 * delay)
    elif moment == "step":
        _until(lambda: any(root.glob("step-*")))
        time.sleep(0.3 * delay)
    else:
        _until(lambda: _steps(metrics) % config.training.eval_interval == 0)


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _steps(metrics: Path) -> int:
    """The last step in the log; 0 without one."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        return int(json.loads(metrics.read_text().splitlines()[-1])["step"])
    return 0
