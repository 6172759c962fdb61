"""What a run tells before its first step, and where it is going to tell the rest."""

import socket
from dataclasses import asdict
from pathlib import Path

import torch

from megatron_tlm.checkpoint.folder import require_writable
from megatron_tlm.comm.groups import Mesh, gather_object
from megatron_tlm.config.dump import dump
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.explain import counted
from megatron_tlm.train.engines.build import choose_backend
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.logs.events import start_facts
from megatron_tlm.train.logs.log import RunLog, Scale, SilentLog, WritingLog
from megatron_tlm.train.logs.metrics import peak_tflops, short
from megatron_tlm.train.prepare import Prepared
from megatron_tlm.train.saving.resume import Progress


def check_log_folders(config: Config, rank: int) -> None:
    """ConfigError on the rank that writes the logs, where it cannot."""
    for name in ("log_dir", "tensorboard_dir"):
        folder = getattr(config.logging, name)
        if folder is not None and rank == 0:
            require_writable(Path(folder), f"logging.{name}")


def build_log(config: Config, prepared: Prepared, mesh: Mesh, progress: Progress, starts: int = 0) -> RunLog:
    """The log of this rank, with the event of its start, behind `starts` others, in it; collective."""
    hosts = gather_object(socket.gethostname())
    if mesh.rank > 0:
        return SilentLog()
    plan = prepared.plan
    batch = plan.micro_batches * config.training.micro_batch_size * plan.grid.data
    known_peak = choose_backend(config) == "nccl" and config.training.bf16
    scale = Scale(
        tokens_per_step=batch * plan.seq_length,
        samples_per_step=batch,
        flops_per_token=plan.flops_per_token,
        num_devices=plan.grid.size,
        peak_tflops=peak_tflops(torch.cuda.get_device_name()) if known_peak else None,
        train_steps=prepared.train_steps,
    )
    log = WritingLog(
        config.logging,
        scale,
        progress.step,
        dump(config),
        first_samples=progress.consumed_samples,
        restarted=starts > 0,
    )
    facts = start_facts(plan, train_steps=prepared.train_steps, samples_per_step=batch, hosts=hosts)
    log.event("start", progress.step, **facts)
    if progress.step or starts:
        source = None if prepared.source is None else str(prepared.source)
        log.event("resume", progress.step, source=source, **asdict(log.lost))
    if starts and (log.lost.steps_again or log.lost.seconds_down):
        log.say(
            f"lost: {log.lost.steps_again} steps that are taken again, {log.lost.seconds_again:.1f} s of training, and "
            f"{log.lost.seconds_down:.1f} s since the last step was logged"
        )
    return log


def opening(prepared: Prepared, engine: Engine, progress: Progress, *, finetune: bool) -> list[str]:
    """What a person wants to see before the first step."""
    plan, grid = prepared.plan, prepared.plan.grid
    widths = plan.shape.widths
    taper = f"width {widths[0]}" if len(set(widths)) == 1 else f"widths {widths[0]} -> {widths[-1]}"
    layout = f"tensor {grid.tensor} x pipe {grid.pipe} x data {grid.data}"
    lines = [
        f"model: {short(plan.parameters)} parameters in {plan.shape.num_layers} layers, MLP {taper}",
        f"layout: {layout} = {counted(grid.size, 'rank')}, {counted(plan.micro_batches, 'micro-batch')} per step"
        f"{_evenness(plan)}",
        f"optimizer: {type(engine.deepspeed.basic_optimizer).__module__.split('.')[0]} "
        f"{type(engine.deepspeed.basic_optimizer).__name__}, ZeRO {engine.deepspeed.zero_optimization_stage()}",
    ]
    if prepared.source is not None and prepared.facts is not None:
        lines.append(
            f"weights from {prepared.source} (step {prepared.facts.step}); steps, data and schedule start anew"
            if finetune
            else f"continued from {prepared.source} at step {progress.step}"
        )
    return lines


def _evenness(plan: Plan) -> str:
    """How far the slowest stage is from the mean one, and by what measure; nothing of a single stage."""
    if len(plan.stages) == 1:
        return ""
    times = [taken.forward + taken.backward for taken in plan.stage_times]
    # FLOPs as models are compared by, or the seconds that the cut was made by.
    slowest, mean, measure = (
        (max(times), sum(times) / len(times), "predicted time")
        if plan.setting.in_seconds
        else (plan.slowest, plan.mean, "FLOPs")
    )
    return f", slowest stage {slowest / mean if mean else 1:.3f} x the mean by {measure}"
