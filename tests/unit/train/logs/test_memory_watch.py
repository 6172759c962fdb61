"""Memory of the fullest rank, at the log interval."""

from pathlib import Path

import pytest
import torch

from megatron_tlm.train.engines.engine import StepResult
from megatron_tlm.train.logs.memory_watch import MemoryWatch, memory
from megatron_tlm.train.logs.watch import Moment
from tests.ranks import run_ranks

CPU = torch.device("cpu")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory of the moment is read from Linux")
def test_resident_memory_grows_by_what_is_taken() -> None:
    before = memory(CPU)
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    after = memory(CPU)
    assert after["mem-rss-bytes"] - before["mem-rss-bytes"] == pytest.approx(block.numel(), rel=0.2)
    assert after["mem-max-rss-bytes"] >= after["mem-rss-bytes"]


def look(rank: int) -> tuple[dict[str, float], float]:
    held = torch.ones(rank * 64 * 2**20, dtype=torch.uint8)
    watch = MemoryWatch(CPU, 2)
    steps = [dict(watch.after_step(Moment(step, StepResult(1.0, 1.0), 1.0, 0.0))) for step in (1, 2)]
    assert steps[0] == {}
    assert len(held) == rank * 64 * 2**20
    return steps[1], memory(CPU)["mem-max-rss-bytes"]


def test_the_fullest_rank_counts() -> None:
    (first, own), (second, fuller) = run_ranks(2, look)
    assert first == second
    assert first["mem-max-rss-bytes"] == pytest.approx(fuller, rel=0.05)
    assert first["mem-max-rss-bytes"] > own + 40 * 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_devices_memory_has_megatrons_names() -> None:
    device = torch.device("cuda", 0)
    block = torch.ones(2**20, device=device)
    found = memory(device)
    assert found["mem-allocated-bytes"] >= block.numel() * 4
    assert found["mem-reserved-bytes"] >= found["mem-allocated-bytes"]
    assert found["mem-max-allocated-bytes"] >= found["mem-allocated-bytes"]
