"""One step of the run's own model on made-up data: does it go, do all ranks see the same, what memory does it take?"""

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig
from megatron_tlm.data.loader import micro_batches
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.doctor.finding import Finding, failed, passed, warned
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.train.engines.build import build_engine, training_device


def take_step(config: Config, plan: Plan, mesh: Mesh) -> dict[str, Any]:
    """Collective. One optimizer step in the run's own layout, from fresh weights; nothing is written."""
    alone = replace(config, data=DataConfig(mock_data=True), checkpoint=CheckpointConfig())
    device = training_device(config)
    before = _peak_bytes(device)
    engine = build_engine(alone, plan, mesh)
    batch = plan.micro_batches * config.training.micro_batch_size * plan.grid.data
    data = micro_batches(
        MockDataset(2 * batch, plan.seq_length, plan.shape.vocab_size, config.training.seed),
        start_sample=0,
        micro_batch_size=config.training.micro_batch_size,
        global_batch_size=batch,
        data_rank=mesh.data.rank,
        data_size=mesh.data.size,
    )
    start = time.perf_counter()
    result = engine.train_step(data, config.optimizer.lr)
    seconds = time.perf_counter() - start
    taken = _peak_bytes(device) - (0 if device.type == "cuda" else before)
    return {
        "seconds": seconds,
        "loss": result.loss,
        "stage": mesh.coordinate.pipe,
        "peak": taken,
        "device": device.type,
    }


def _peak_bytes(device: torch.device) -> int:
    """Of torch's allocator on a GPU; on the CPU the largest resident size so far of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def step_findings(told: Sequence[Any], plan: Plan) -> list[Finding]:
    """Of what every rank's `take_step` gave, as JSON."""
    values = [item["value"] for item in told]
    slowest = max(told, key=lambda item: item["value"]["seconds"])
    found = [
        passed(
            "step",
            f"loss {values[0]['loss']:.4f} after {slowest['value']['seconds']:.2f} s, the first of a process is the "
            "slowest",
        )
    ]
    losses = {f"{value['loss']:.6g}" for value in values}
    if len(losses) > 1:
        found = [failed("step", f"ranks see {len(losses)} different losses of one step", "report this: it is a bug")]
    fullest = max(told, key=lambda item: item["value"]["peak"] - plan.memory[item["value"]["stage"]].total)
    value = fullest["value"]
    planned = plan.memory[value["stage"]].total
    who = f"rank {fullest['rank']} on {fullest['node']}"
    text = f"{who} took {gibibytes(value['peak'])} of the plan's {gibibytes(planned)}"
    if value["device"] == "cuda" and value["peak"] > 1.1 * planned:
        found.append(warned("peak memory", text, "leave more room than the plan says"))
    else:
        found.append(passed("peak memory", text + ("" if value["device"] == "cuda" else ", by the process's growth")))
    return found
