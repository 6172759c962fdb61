"""The watchers of a run, from what its configuration asks to see."""

from collections.abc import Callable

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engine import Engine
from megatron_tlm.train.novelty_watch import NoveltyWatch
from megatron_tlm.train.stage_times import StageTimes
from megatron_tlm.train.watch import Watcher


def build_watchers(
    config: Config, plan: Plan, mesh: Mesh, engine: Engine, samples: SampleDataset, say: Callable[[str], None]
) -> tuple[Watcher, ...]:
    """In the order in which they are told of a step, the same on all ranks; `say` puts a line on the console.

    `samples` are what is looked at without training on it.
    """
    watchers: list[Watcher] = []
    if len(plan.stages) > 1:
        watchers.append(StageTimes(engine.deepspeed, plan, mesh, config.logging.log_interval, say))
    if config.logging.novelty_interval is not None:
        watchers.append(NoveltyWatch(config, plan, mesh, engine, samples, say))
    return tuple(watchers)
