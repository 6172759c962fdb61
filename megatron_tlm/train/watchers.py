"""The watchers of a run, from what its configuration asks to see."""

from collections.abc import Callable

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engine import Engine
from megatron_tlm.train.stage_times import StageTimes
from megatron_tlm.train.watch import Watcher


def build_watchers(
    config: Config, plan: Plan, mesh: Mesh, engine: Engine, say: Callable[[str], None]
) -> tuple[Watcher, ...]:
    """In the order in which they are told of a step, the same on all ranks; `say` puts a line on the console."""
    watchers: list[Watcher] = []
    if len(plan.stages) > 1:
        watchers.append(StageTimes(engine.deepspeed, plan, mesh, config.logging.log_interval, say))
    return tuple(watchers)
