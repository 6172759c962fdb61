"""Step times of one tapered model on two CPU stages, cut by us and by DeepSpeed's rules: measured, in turns.

    torchrun --nproc-per-node 2 tools/bench/pipeline_cuts.py [--rounds 12] [--layers 8] [--width 384] ...

All engines live in the same two processes and take a step each per round, so that a busy moment of the machine hits
all alike. Units and messages are measured first, on both ranks at once, and the step times predicted from them.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from statistics import median, quantiles

import numpy as np
import torch
import torch.distributed as dist

from megatron_tlm.comm.groups import all_reduce_max, build_mesh, init_distributed, shutdown
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TaperConfig, TrainingConfig
from megatron_tlm.evaluation.measure_messages import measure_messages
from megatron_tlm.evaluation.measure_units import measure_units
from megatron_tlm.plan.build import Plan, build_plan, cut_units
from megatron_tlm.plan.compare import rivals
from megatron_tlm.plan.hardware import Profile
from megatron_tlm.plan.setting import Setting
from megatron_tlm.train.engines.build import build_engine

RULES = ("DeepSpeed uniform", "DeepSpeed parameters", "ours")


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    init_distributed("gloo", timedelta(minutes=10))
    config = build_config(options)
    plan = build_plan(config, options.vocabulary)
    profile = shared_profile(config, plan, options.rounds)
    planned = replan(plan, replace(plan.setting, profile=profile))
    chosen = {rival.name: rival.plan for rival in rivals(planned) if rival.name in RULES and rival.plan is not None}
    mesh = build_mesh(plan.grid)
    engines = {name: build_engine(config, cut, mesh) for name, cut in chosen.items()}
    batches = tokens(options)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for index in range(options.rounds + 2):
        for name, engine in engines.items():
            dist.barrier()
            begin = time.perf_counter()
            engine.train_step(batches, 1e-4)
            (taken,) = all_reduce_max([time.perf_counter() - begin])
            if index >= 2:
                times[name].append(taken)
    if mesh.rank == 0:
        report(chosen, times, planned)
    shutdown()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {
        "rounds": 12, "layers": 8, "width": 384, "heads": 6, "ffn": 1536, "length": 128,
        "vocabulary": 16000, "micro-batches": 8, "seed": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def build_config(options: argparse.Namespace) -> Config:
    return Config(
        model=ModelConfig(
            num_layers=options.layers,
            hidden_size=options.width,
            num_attention_heads=options.heads,
            seq_length=options.length,
            ffn_hidden_size=options.ffn,
            untie_embeddings_and_output_weights=True,
        ),
        taper=TaperConfig(),
        parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=0),
        training=TrainingConfig(micro_batch_size=1, global_batch_size=options.micro_batches),
    )


def tokens(options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Micro-batches [1, S + 1] of made-up tokens, the same on both ranks."""
    generator = np.random.default_rng(options.seed)
    while True:
        yield generator.integers(0, options.vocabulary, (1, options.length + 1))


def shared_profile(config: Config, plan: Plan, rounds: int) -> Profile:
    """The mean of what both ranks measure, at work at the same time; messages between them included."""
    device = torch.device("cpu")
    alone = replace(plan, grid=replace(plan.grid, pipe=1))
    units = measure_units(config, alone, device, rounds=rounds)
    cost = measure_messages(plan.setting.message_bytes, 1, device)
    return replace(units, message_latency=cost.latency, message_bandwidth=cost.bandwidth)


def replan(plan: Plan, setting: Setting) -> Plan:
    """The best cut by what was measured."""
    stages, cut = cut_units(setting, plan.units)
    return replace(plan, setting=setting, stages=stages, cut=cut)


def report(chosen: dict[str, Plan], times: dict[str, list[float]], planned: Plan) -> None:
    ours = times["ours"]
    rounds = len(ours)
    print(f"{planned.parameters / 1e6:.1f}M parameters, widths {planned.shape.widths}, {rounds} rounds in turns")
    heads = ("begins with", "measured", "spread", "over ours", "predicted", "error")
    print(f"{'cut':22} {heads[0]:18} {heads[1]:>10} {heads[2]:>17} {heads[3]:>10} {heads[4]:>10} {heads[5]:>7}")
    for name, cut in chosen.items():
        middle, (low, _, high) = median(times[name]), quantiles(times[name], n=4)
        ratio = median(a / b for a, b in zip(times[name], ours, strict=True))
        predicted = cut.step_seconds or 0.0
        print(
            f"{name:22} {cut.stage_units(1)[0].name:18} {middle:9.3f}s {low:7.3f}-{high:7.3f}s {ratio:10.3f} "
            f"{predicted:9.3f}s {predicted / middle - 1:+7.1%}"
        )


if __name__ == "__main__":
    main()
