"""In place of a training run: writes the metrics of one, from its configuration alone, and continues where it was.

python trainer.py CONFIG      FAIL="arm lr": a run whose path has all these words fails
                              HANG=path: sleeps after half of its steps
                              STOP_AT=step: leaves there as after SIGTERM
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml


def loss_of(config: dict[str, Any], step: int) -> float:
    """Best at 0.002, better for a taper, another for every seed."""
    rate, seed = config["optimizer"]["lr"], config["training"]["seed"]
    gain = {"uniform": 0.0, "cosine": 0.1, "wider-early": 0.05}.get(config["taper"]["taper_schedule"], -0.1)
    return 5.0 - gain + 100 * abs(rate - 0.002) + 0.01 * (seed * 7 % 5) + 1.0 / (step + seed)


def main(path: Path) -> int:
    config = yaml.safe_load(path.read_text())
    folder = Path(config["logging"]["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    metrics, name = folder / "metrics.jsonl", str(path.parent)
    done = sum('"loss"' in line for line in metrics.read_text().splitlines()) if metrics.exists() else 0
    steps = config["training"]["train_iters"]
    with metrics.open("a", buffering=1) as out:
        for step in range(done + 1, steps + 1):
            if (words := os.environ.get("FAIL")) and all(word in name for word in words.split()):
                print("megatron-tlm: error: rank 0: step 2: loss = nan is not finite", file=sys.stderr)
                return 2
            loss = loss_of(config, step)
            out.write(json.dumps({"step": step, "loss": loss, "tokens": step * 64, "seconds": 0.001}) + "\n")
            if step == steps:
                out.write(json.dumps({"step": step, "valid_loss": loss + 0.1}) + "\n")
            if (hang := os.environ.get("HANG")) and hang in name and step * 2 >= steps:
                time.sleep(60)
            if str(step) == os.environ.get("STOP_AT"):
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
