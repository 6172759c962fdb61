"""What each token mixer costs beside plain attention: seconds and peak memory of one layer's forward and backward.

    python tools/bench/mixers.py                         512, 2048 and 8192 tokens, one sequence
    python tools/bench/mixers.py --lengths 512 --hidden-size 512 --dtype bfloat16 --device cuda

On the CPU one thread is used, and seconds are those of the processor, so that a busy machine does not count; each case
runs in a process of its own. On a GPU seconds are the clock's. The peak is what torch has allocated at most, beyond
what was there before the step. Best of the repeats, after a first run that does not count.
"""

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.architecture import ArchitectureConfig
from megatron_tlm.config.schema import Config, ModelConfig
from megatron_tlm.model.init import init_parameters
from megatron_tlm.model.units import build_unit, global_name
from megatron_tlm.plan.build import build_plan

CASES: dict[str, dict[str, Any]] = {
    "attention": {},
    "gated, elementwise": {"mixer": "gated_attention"},
    "gated, headwise": {"mixer": "gated_attention", "attention_gate": "headwise"},
    "attention + MLP": {},
    "attention + 3 MLPs (Hope)": {"cms_levels": 3},
    "titans lmm, chunk 16": {"mixer": "titans_lmm"},
    "titans lmm, chunk 64": {"mixer": "titans_lmm", "memory_chunk_size": 64},
    "titans mag, chunk 64": {"mixer": "titans_mag", "memory_chunk_size": 64},
}
WITH_MLP = ("attention + MLP", "attention + 3 MLPs (Hope)")
BASELINES = {"attention + 3 MLPs (Hope)": "attention + MLP"}


@dataclass(frozen=True)
class Sizes:
    """Of the layer under test."""

    hidden_size: int
    num_heads: int
    length: int
    repeats: int
    dtype: torch.dtype
    device: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-attention-heads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON lines instead")
    given = parser.parse_args()
    sizes = Sizes(
        given.hidden_size, given.num_attention_heads, 0, given.repeats, getattr(torch, given.dtype), given.device
    )
    if not given.json:
        print(f"{device_name(given.device)}, torch {torch.__version__}, D {sizes.hidden_size}, {sizes.num_heads} heads")
        print(f"{'mixer':28} {'tokens':>7} {'ms':>9} {'x':>6} {'MB':>8} {'x':>6}")
    for length in given.lengths:
        measured: dict[str, tuple[float, float]] = {}
        for name in CASES:
            measured[name] = in_own_process(name, replace(sizes, length=length))
            seconds, peak = measured[name]
            base_seconds, base_peak = measured[BASELINES.get(name, "attention")]
            if given.json:
                print(json.dumps({"mixer": name, "tokens": length, "seconds": seconds, "peak_bytes": peak}))
                continue
            print(
                f"{name:28} {length:7} {1000 * seconds:9.1f} {seconds / base_seconds:6.2f} {peak / 1e6:8.1f} "
                f"{peak / base_peak:6.2f}",
                flush=True,
            )


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, 1 thread"


def in_own_process(name: str, sizes: Sizes) -> tuple[float, float]:
    """Seconds and peak bytes of one case."""
    if sizes.device == "cuda":
        return measure(name, sizes)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(measure(name, sizes)))
    process.start()
    theirs.close()
    result: tuple[float, float] = ours.recv()
    process.join()
    return result


def measure(name: str, sizes: Sizes) -> tuple[float, float]:
    """The best of the repeats, and the peak over the layer's own weights and gradients."""
    torch.set_num_threads(1)
    model = ModelConfig(
        num_layers=1,
        hidden_size=sizes.hidden_size,
        num_attention_heads=sizes.num_heads,
        seq_length=sizes.length,
        ffn_hidden_size=sizes.hidden_size * 3,
    )
    architecture = ArchitectureConfig(**{"match_params": False, **CASES[name]})
    plan = build_plan(Config(model, architecture=architecture), 128)
    units = plan.units[1:-1] if name in WITH_MLP else plan.units[1:2]
    device = torch.device(sizes.device)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    modules = []
    for unit in units:
        module = build_unit(unit, plan, AxisGroup.single(), sizes.dtype, device).train()
        named = {global_name(unit, key, plan.shape): parameter for key, parameter in module.named_parameters()}
        init_parameters(named, plan, 0, seed=1, std=0.02)
        modules.append(module)

    def step() -> float:
        x = torch.randn(1, sizes.length, sizes.hidden_size, dtype=sizes.dtype, device=device, requires_grad=True)
        synchronise(device)
        start = clock()
        y = x
        for module in modules:
            y = module(y)
        y.backward(torch.ones_like(y))
        synchronise(device)
        return clock() - start

    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    step()
    seconds = min(step() for _ in range(sizes.repeats))
    return seconds, peak_bytes(step, device)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(step: Callable[[], float], device: torch.device) -> float:
    """The most that torch's allocator has out during a step, over what it had before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return float(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    out = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        out += event.nbytes()
        peak = max(peak, out)
    return float(peak)


if __name__ == "__main__":
    main()
