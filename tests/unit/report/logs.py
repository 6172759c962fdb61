"""A log folder as a run leaves it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_tlm.train.logs.events import start_facts
from tests.tiny_model import tiny_plan

NOW = 2_000_000_000.0
CONFIG = "model:\n  num_layers: 2\noptimizer:\n  lr: 0.001\nlogging:\n  log_dir: here\n"


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "loss": 5.0 - number / 100, "lr": 1e-3, "seconds": 0.5, "tokens_per_second": 100.0} | more


def start(**more: Any) -> dict[str, Any]:
    facts = start_facts(tiny_plan(pipe=2), train_steps=40, samples_per_step=4, hosts=["a", "a"])
    return {"event": "start", "step": 0, "time": NOW - 100} | facts | more


def write_logs(
    folder: Path, steps: Sequence[dict[str, Any]] = (), events: Sequence[dict[str, Any]] = (), config: str = CONFIG
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("metrics.jsonl", steps), ("events.jsonl", events)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "config.yaml").write_text(config)
    return folder
