"""The watchers of a run, from what its configuration asks to see."""

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.build import training_device
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.logs.log import RunLog
from megatron_tlm.train.logs.memory_watch import MemoryWatch
from megatron_tlm.train.logs.novelty_watch import NoveltyWatch
from megatron_tlm.train.logs.stage_times import StageTimes
from megatron_tlm.train.logs.straggler import StragglerWatch
from megatron_tlm.train.logs.watch import Watcher


def build_watchers(
    config: Config, plan: Plan, mesh: Mesh, engine: Engine, samples: SampleDataset, log: RunLog
) -> tuple[Watcher, ...]:
    """In the order in which they are told of a step, the same on all ranks; collective.

    `samples` are what is looked at without training on it.
    """
    wanted, device = config.logging, training_device(config)
    stragglers = StragglerWatch(
        engine.deepspeed.module,
        mesh,
        device,
        interval=wanted.log_interval,
        threshold=wanted.straggler_threshold,
        most_named=wanted.straggler_minmax_count,
        say=log.say,
        event=log.event,
    )
    watchers: list[Watcher] = [stragglers, MemoryWatch(device, wanted.log_interval)]
    if len(plan.stages) > 1:
        watchers.append(StageTimes(engine.deepspeed, plan, mesh, wanted.log_interval, log.say))
    if config.logging.novelty_interval is not None:
        watchers.append(NoveltyWatch(config, plan, mesh, engine, samples, log.say))
    return tuple(watchers)
