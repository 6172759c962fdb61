"""One training run from a configuration to an exit code, on every rank that torchrun (or a plain python) started.

What can be refused is refused before a process group exists. From then on a rank that fails says why and leaves at
once, without a last collective: the others would wait for it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch

from megatron_tlm.checkpoint.facts import Facts, Scalar
from megatron_tlm.checkpoint.folder import require_writable
from megatron_tlm.comm.groups import Mesh, build_mesh, init_distributed, new_groups_wait, shutdown
from megatron_tlm.comm.torchrun import stop_with_launcher
from megatron_tlm.config.check import check_training, global_batch_size
from megatron_tlm.config.dump import dump
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.schema import Config
from megatron_tlm.data.loader import Datasets, build_datasets, check_corpora, data_facts
from megatron_tlm.data.tokenizers import Tokenizer, load_tokenizer
from megatron_tlm.errors import ConfigError, DataError, TlmError
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.train.agree import agree
from megatron_tlm.train.build import build_engine, choose_backend
from megatron_tlm.train.changes import changes_since
from megatron_tlm.train.deepspeed_config import check_deepspeed
from megatron_tlm.train.engine import Engine
from megatron_tlm.train.former import check_save_folder
from megatron_tlm.train.leave import leave
from megatron_tlm.train.log import RunLog, Scale, SilentLog, WritingLog
from megatron_tlm.train.loop import Run, train_loop
from megatron_tlm.train.metrics import peak_tflops, short
from megatron_tlm.train.multi_frequency import level_news
from megatron_tlm.train.optimizer import run_periods
from megatron_tlm.train.packing import pack_rules
from megatron_tlm.train.saver import BackgroundSaver, Saver
from megatron_tlm.train.saving import Progress, damage, find_resume, resume, saved_facts
from megatron_tlm.train.schedule import Schedule, build_schedule


@dataclass(frozen=True)
class Prepared:
    """What is settled before any rank talks to another; `news` is for rank 0 to tell."""

    plan: Plan
    schedule: Schedule
    train_steps: int
    tokenizer: Tokenizer | None
    source: Path | None
    news: tuple[str, ...]
    facts: Facts | None = None  # of the source
    before: Mapping[str, Scalar] = field(default_factory=dict)  # what the checkpoint keeps of its data


T = TypeVar("T")


def train(config: Config, announce: Callable[[], None] = lambda: None) -> int:
    """Runs a training; 0 when it ended, or stopped as asked. `announce` is called once nothing is left to refuse.

    TlmError for a mistake seen before the process group stands. Later ones end this process: code 2 for a TlmError,
    1 for anything else.
    """
    rank, world_size, _ = read_launch()
    stop_with_launcher()
    prepared = prepare(config, world_size)
    announce()
    # Before the process group stands: a sample order may take minutes, and no collective shall wait for it.
    data = _attempt(lambda: _datasets(config, prepared))
    try:
        _join(config)
        prepared, data = _undamaged(config, prepared, data, rank, world_size)
        _run(config, prepared, data)
        shutdown()
    except BaseException as error:
        leave(error, rank)
    return 0


def prepare(config: Config, world_size: int, damaged: Mapping[Path, str] = MappingProxyType({})) -> Prepared:
    """Everything that can be decided or refused without another rank; TlmError for the first fault.

    `damaged` are checkpoints that are not to be continued from, and why.
    """
    degree = check_training(config, world_size)
    check_deepspeed(config)
    batch = global_batch_size(config, degree)
    train_steps = config.training.train_iters or (config.training.train_samples or 0) // batch
    tokenizer = _tokenizer(config)
    vocab_size = config.model.vocab_size or (tokenizer.vocab_size if tokenizer else 0)
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"model.vocab_size = {vocab_size} is below the tokenizer's {tokenizer.vocab_size} ids; "
            "leave --vocab-size out or raise it"
        )
    plan = build_plan(config, vocab_size, data=degree)
    pack_rules(config.data, eod_id(tokenizer), plan.shape.mixer)
    check_corpora(config.data, plan.shape.vocab_size, valid=config.training.eval_iters > 0)
    news: list[str] = []
    source = find_resume(config.checkpoint, news, damaged)
    check_save_folder(config.checkpoint, source)
    if config.checkpoint.save is not None:
        require_writable(Path(config.checkpoint.save), "checkpoint.save")
    schedule = build_schedule(config.optimizer, train_steps)
    facts = None if source is None else saved_facts(source, plan)
    before: Mapping[str, Scalar] = {}
    if facts is not None and not config.checkpoint.finetune:
        before = facts.extra
        news += changes_since(facts, config, schedule, batch)
    return Prepared(
        plan=plan,
        schedule=schedule,
        train_steps=train_steps,
        tokenizer=tokenizer,
        source=source,
        news=tuple(news),
        facts=facts,
        before=before,
    )


def _undamaged(
    config: Config, prepared: Prepared, data: Callable[[], Datasets], rank: int, world_size: int
) -> tuple[Prepared, Callable[[], Datasets]]:
    """Reads every file of the source once, ranks together; where it is damaged all prepare for the step before."""
    damaged: dict[Path, str] = {}
    while prepared.source is not None and (fault := damage(prepared.source, rank, world_size)):
        damaged[prepared.source] = fault
        prepared = agree(lambda: prepare(config, world_size, damaged))
    if damaged:
        data = _attempt(lambda: _datasets(config, prepared))
    return prepared, data


def check_log_folders(config: Config, rank: int) -> None:
    """ConfigError on the rank that writes the logs, where it cannot."""
    for name in ("log_dir", "tensorboard_dir"):
        folder = getattr(config.logging, name)
        if folder is not None and rank == 0:
            require_writable(Path(folder), f"logging.{name}")


def _tokenizer(config: Config) -> Tokenizer | None:
    data = config.data
    if data.tokenizer_type is None and data.tokenizer_model is None:
        return None
    return load_tokenizer(data.tokenizer_type, data.tokenizer_model, vocab_size=config.model.vocab_size)


def eod_id(tokenizer: Tokenizer | None) -> int | None:
    """The id that ends a document, None where there is no tokenizer to ask, or it has none."""
    try:
        return None if tokenizer is None else tokenizer.eod_id
    except DataError:
        return None


def _timeout(config: Config) -> timedelta:
    return timedelta(minutes=config.parallel.distributed_timeout_minutes)


def _join(config: Config) -> None:
    backend, timeout = choose_backend(config), _timeout(config)
    if "WORLD_SIZE" in os.environ:
        init_distributed(backend, timeout)
    else:
        # One process on its own: DeepSpeed wants a process group all the same, on any free port.
        init_distributed(backend, timeout, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


def _attempt(action: Callable[[], T]) -> Callable[[], T]:
    """Does it now; the result, or the fault that ranks can agree on, is for later."""
    try:
        result = action()
    except (TlmError, OSError) as error:
        fault = error

        def fail() -> T:
            raise fault

        return fail
    return lambda: result


def _run(config: Config, prepared: Prepared, built: Callable[[], Datasets]) -> None:
    plan = prepared.plan
    with new_groups_wait(_timeout(config)):
        mesh = build_mesh(plan.grid)
        data = agree(built)
        agree(lambda: check_log_folders(config, mesh.rank))
        engine = build_engine(config, plan, mesh, eod_id(prepared.tokenizer))
    progress = Progress() if prepared.source is None else resume(config, engine, plan, mesh, prepared.source)
    log = agree(lambda: _build_log(config, prepared, mesh, progress))
    levels = level_news(run_periods(config, plan), prepared.train_steps)
    opening = _opening(prepared, engine, progress, finetune=config.checkpoint.finetune)
    for text in (*prepared.news, *opening, *data.notes, *levels):
        log.say(text)
    if data.train is None or progress.step >= prepared.train_steps:
        log.say(f"nothing to do: step {progress.step} of {prepared.train_steps} is done; raise --train-iters")
        return
    run = Run(
        config=config,
        plan=plan,
        mesh=mesh,
        engine=engine,
        schedule=prepared.schedule,
        train_steps=prepared.train_steps,
        train=data.train,
        valid=data.valid,
        log=log,
        saver=_saver(config, prepared, mesh, engine, progress, log),
        data_facts=lambda consumed_samples: data_facts(data, consumed_samples),
    )
    try:
        train_loop(run, progress)
    finally:
        log.close()
        if run.saver is not None:
            run.saver.close()


def _saver(
    config: Config, prepared: Prepared, mesh: Mesh, engine: Engine, progress: Progress, log: RunLog
) -> Saver | None:
    if config.checkpoint.save is None:
        return None
    plan, tokenizer = prepared.plan, prepared.tokenizer
    return BackgroundSaver(config, engine, plan, mesh, tokenizer, saved_step=progress.step, say=log.say)


def _datasets(config: Config, prepared: Prepared) -> Datasets:
    """Training samples for the whole run, and as many validation samples as one evaluation takes.

    DataError where a resumed run would read other samples than it did before, unless that is allowed.
    """
    plan = prepared.plan
    batch = plan.micro_batches * config.training.micro_batch_size * plan.grid.data

    def build(before: Mapping[str, Scalar]) -> Datasets:
        return build_datasets(
            config.data,
            num_samples=(prepared.train_steps * batch, config.training.eval_iters * batch, 0),
            seq_length=plan.seq_length,
            seed=config.training.seed,
            vocab_size=plan.shape.vocab_size,
            before=before,
        )

    built = build(prepared.before)
    if not config.checkpoint.allow_data_change:
        built.fingerprint.check(prepared.before, str(prepared.source))
    elif changes := built.fingerprint.changes(prepared.before):
        built = build({})
        built = replace(built, notes=(*built.notes, f"data changed, as allowed: {'; '.join(changes)}"))
    return built


def _build_log(config: Config, prepared: Prepared, mesh: Mesh, progress: Progress) -> RunLog:
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
    return WritingLog(config.logging, scale, progress.step, dump(config), first_samples=progress.consumed_samples)


def _opening(prepared: Prepared, engine: Engine, progress: Progress, *, finetune: bool) -> list[str]:
    """What a person wants to see before the first step."""
    plan, grid = prepared.plan, prepared.plan.grid
    widths = plan.shape.widths
    taper = f"width {widths[0]}" if len(set(widths)) == 1 else f"widths {widths[0]} -> {widths[-1]}"
    layout = f"tensor {grid.tensor} x pipe {grid.pipe} x data {grid.data}"
    lines = [
        f"model: {short(plan.parameters)} parameters in {plan.shape.num_layers} layers, MLP {taper}",
        f"layout: {layout} = {grid.size} ranks, {plan.micro_batches} micro-batches per step, "
        f"slowest stage {plan.slowest / plan.mean:.3f} x the mean",
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
