"""The watchers of a run, from what its configuration asks to see."""

from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engine import Engine
from megatron_tlm.train.watch import Watcher


def build_watchers(config: Config, plan: Plan, mesh: Mesh, engine: Engine) -> tuple[Watcher, ...]:
    """In the order in which they are told of a step, the same on all ranks."""
    return ()
