"""One training run from a configuration to an exit code, on every rank that torchrun (or a plain python) started.

What can be refused is refused before a process group exists. From then on a rank that fails says why and leaves at
once, without a last collective: the others would wait for it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.comm.groups import Mesh, build_mesh, init_distributed, lone_store, new_groups_wait, shutdown
from megatron_tlm.comm.meeting import Meeting, meet
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.schema import Config
from megatron_tlm.data.loader import Datasets, build_datasets, data_facts
from megatron_tlm.errors import DataError
from megatron_tlm.train.engines.build import build_engine, choose_backend
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.multi_frequency import level_news
from megatron_tlm.train.engines.optimizer import run_periods
from megatron_tlm.train.logs.heartbeat import Heartbeat, heartbeat_folder
from megatron_tlm.train.logs.log import RunLog
from megatron_tlm.train.logs.watchers import build_watchers
from megatron_tlm.train.loop import train_loop
from megatron_tlm.train.opening import build_log, check_log_folders, opening
from megatron_tlm.train.prepare import Prepared, eod_id, prepare
from megatron_tlm.train.run import Run
from megatron_tlm.train.saving.resume import Progress, damage, resume
from megatron_tlm.train.saving.saver import BackgroundSaver, Saver
from megatron_tlm.train.survival.agree import agree, agree_before
from megatron_tlm.train.survival.bad_steps import StepJudge
from megatron_tlm.train.survival.leave import last_words, leave, speak
from megatron_tlm.train.survival.rank_facts import require_same_facts
from megatron_tlm.train.survival.rank_work import require_same_work
from megatron_tlm.train.survival.restart import after_restart, agreed_starts
from megatron_tlm.train.survival.rollback import rollback
from megatron_tlm.train.survival.whereabouts import Watchdog, Whereabouts


def train(config: Config, announce: Callable[[], None] = lambda: None) -> int:
    """Runs a training; 0 when it ended, or stopped as asked. `announce` is called once nothing is left to refuse.

    TlmError for a mistake seen before the process group stands. Later ones end this process: code 2 for a TlmError,
    1 for anything else.
    """
    began = time.monotonic()
    rank, world_size, _ = read_launch()
    place = Whereabouts(rank)
    meeting = meet(rank, world_size, _timeout(config))
    require_same_facts(meeting, config)
    starts = agreed_starts(meeting)
    config, news = after_restart(config, meeting, starts)
    prepared = agree_before(meeting, "prepare", lambda: prepare(config, world_size))
    announce()
    with Heartbeat(heartbeat_folder(config.logging), rank, world_size) as place.heart:
        # Before the process group stands: a sample order may take minutes, and no collective shall wait for it.
        data = agree_before(meeting, "data", lambda: _datasets(config, prepared))
        require_same_work(meeting, config, prepared, data.fingerprint)
        try:
            _join(config, meeting)
            prepared, data = _undamaged(config, prepared, data, meeting)
            prepared = replace(prepared, news=(*news, *prepared.news))
            _run(config, prepared, data, place, began, starts)
            shutdown()
        except BaseException as error:
            place.heart.beat("failed")
            leave(error, place)
    return 0


def _undamaged(config: Config, prepared: Prepared, data: Datasets, meeting: Meeting) -> tuple[Prepared, Datasets]:
    """Reads every file of the source once, ranks together; where it is damaged all prepare for the step before."""
    damaged: dict[Path, str] = {}
    while prepared.source is not None and (fault := damage(prepared.source, meeting.rank, meeting.world_size)):
        damaged[prepared.source] = fault
        prepared = agree(lambda: prepare(config, meeting.world_size, damaged))
    if damaged:
        # Not under a collective, which would wait for the timeout and no longer.
        data = agree_before(meeting, "data of the step before", lambda: _datasets(config, prepared))
    return prepared, data


def _timeout(config: Config) -> timedelta:
    return timedelta(minutes=config.parallel.distributed_timeout_minutes)


def _join(config: Config, meeting: Meeting) -> None:
    # One process on its own needs a process group all the same, DeepSpeed wants it, but no port to be found at.
    store = meeting.store or lone_store()
    init_distributed(
        choose_backend(config), _timeout(config), rank=meeting.rank, world_size=meeting.world_size, store=store
    )


def _run(config: Config, prepared: Prepared, data: Datasets, place: Whereabouts, began: float, starts: int) -> None:
    plan = prepared.plan
    with new_groups_wait(_timeout(config)):
        mesh = build_mesh(plan.grid)
        agree(lambda: check_log_folders(config, mesh.rank))
        engine = build_engine(config, plan, mesh, eod_id(prepared.tokenizer))
    progress = Progress() if prepared.source is None else resume(config, engine, plan, mesh, prepared.source)
    log = agree(lambda: build_log(config, prepared, mesh, progress, starts))
    levels = level_news(run_periods(config, plan), prepared.train_steps)
    told = opening(prepared, engine, progress, finetune=config.checkpoint.finetune)
    for text in (*prepared.news, *told, *data.notes, *levels):
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
        named=data.named,
        log=log,
        saver=_saver(config, prepared, mesh, engine, progress, log, place),
        data_facts=lambda consumed_samples: data_facts(data, consumed_samples),
        watchers=build_watchers(config, plan, mesh, engine, data.valid or data.train, log),
        judge=StepJudge(config.resilience),
        go_back=rollback(config, engine, plan, mesh, source=prepared.source, first_step=progress.step, tell=log.say),
        place=place,
        began=began,
    )
    if not config.checkpoint.finetune:
        run.judge.restore(prepared.before)
    place.stage, place.steps = mesh.coordinate.pipe, progress.step
    engine.deepspeed.module.register_forward_hook(place.alive)
    _train(run, progress)


def _train(run: Run, progress: Progress) -> None:
    """The loop, watched; whatever ends it, its logs and its save folder are left in order."""
    try:
        # A little behind the collectives' own timeout: what they see, they tell better.
        with Watchdog(run.place, 1.25 * _timeout(run.config).total_seconds()):
            train_loop(run, progress)
    except BaseException as error:
        speak(error, run.place)
        run.log.event("failure", run.place.steps, error=last_words(error, run.place))
        raise
    finally:
        for watcher in run.watchers:
            watcher.close()
        run.log.close()
        if run.saver is not None:
            run.saver.close()


def _saver(
    config: Config,
    prepared: Prepared,
    mesh: Mesh,
    engine: Engine,
    progress: Progress,
    log: RunLog,
    place: Whereabouts,
) -> Saver | None:
    if config.checkpoint.save is None:
        return None
    return BackgroundSaver(
        config,
        engine,
        prepared.plan,
        mesh,
        prepared.tokenizer,
        saved_step=progress.step,
        say=log.say,
        event=log.event,
        alive=place.alive,
    )


def _datasets(config: Config, prepared: Prepared) -> Datasets:
    """Training samples for the whole run, and as many of each validation set as one evaluation takes.

    DataError where a resumed run would read other samples than it did before, unless that is allowed.
    """
    plan = prepared.plan
    batch = plan.micro_batches * config.training.micro_batch_size * plan.grid.data
    training = config.training
    valid = None if training.full_validation and training.eval_iters else training.eval_iters * batch

    def build(before: Mapping[str, Scalar]) -> Datasets:
        return build_datasets(
            config.data,
            num_samples=(prepared.train_steps * batch, valid, 0),
            seq_length=plan.seq_length,
            seed=config.training.seed,
            vocab_size=plan.shape.vocab_size,
            before=before,
        )

    built = build(prepared.before)
    if valid is None:
        _check_full_batches(built, batch)
    if not config.checkpoint.allow_data_change:
        built.fingerprint.check(prepared.before, str(prepared.source))
    elif changes := built.fingerprint.changes(prepared.before):
        built = build({})
        built = replace(built, notes=(*built.notes, f"data changed, as allowed: {'; '.join(changes)}"))
    return built


def _check_full_batches(data: Datasets, batch: int) -> None:
    for name, dataset in {"validation": data.valid, **data.named}.items():
        if dataset is not None and len(dataset) < batch:
            raise DataError(
                f"training.full_validation = True takes full batches of {batch} samples, and the {name} set has "
                f"{len(dataset)}; give more data, a smaller --global-batch-size, or leave it out"
            )
