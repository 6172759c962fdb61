"""Small studies for these tests, and a runner whose training runs are played by trainer.py."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from megatron_tlm.config.study import read_study
from megatron_tlm.study.design import Design
from megatron_tlm.study.runner import Resources, Runner

TRAINER = Path(__file__).with_name("trainer.py")

BASE: dict[str, Any] = {
    "model": {
        "num_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "seq_length": 16,
        "ffn_hidden_size": 64,
        "vocab_size": 128,
    },
    "training": {"micro_batch_size": 4, "train_iters": 6, "eval_iters": 1},
    "optimizer": {"lr": 1e-3, "min_lr": 1e-4},
    "data": {"mock_data": True},
}
ARMS: dict[str, Any] = {
    "uniform": {"taper": {"taper_schedule": "uniform"}},
    "cosine": {"taper": {"taper_schedule": "cosine"}},
}
STUDY: dict[str, Any] = {"arms": ARMS, "learning_rates": [0.002, 0.004], "seeds": [1, 2]}


def write(folder: Path, *, base: dict[str, Any] | None = None, **study: Any) -> Path:
    """A study's file in a folder, with other keys of its study: section, or of a run."""
    path = folder / "small.yaml"
    merged = {**BASE, **(base or {}), "study": {**STUDY, **study}}
    path.write_text(yaml.safe_dump(merged, sort_keys=False))
    return path


def design(folder: Path, *, base: dict[str, Any] | None = None, **study: Any) -> Design:
    return Design(read_study(write(folder, base=base, **study)), folder / "out")


def play(path: Path, ranks: int) -> list[str]:
    return [sys.executable, str(TRAINER), str(path)]


def runner(own: Design, say: Callable[[str], None] = lambda text: None, parallel: int = 2) -> Runner:
    return Runner(own, Resources(parallel, 1), say, command=play)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    # python studies.py FILE OUT: a study in a process of its own, to be stopped.
    print(runner(Design(read_study(Path(sys.argv[1])), Path(sys.argv[2])), lambda text: print(text, flush=True)).run())
