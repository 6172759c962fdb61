"""A running engine filled again with one of its run's own checkpoints."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_name
from megatron_tlm.comm.groups import Mesh
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.run import GoBack
from megatron_tlm.train.saving.resume import Progress, damage, resume, save_root
from megatron_tlm.train.survival.agree import AgreedError


def rollback(config: Config, engine: Engine, plan: Plan, mesh: Mesh, *, source: Path | None, first_step: int) -> GoBack:
    """To a step that this run saved, or to `source`, from which it started at `first_step`."""
    # Which state was wanted at the start does not matter any more: this is the run's own.
    own = replace(config, checkpoint=replace(config.checkpoint, no_load_optim=False, finetune=False))

    def go_back(step: int) -> tuple[Progress, Mapping[str, Scalar]]:
        begun = source is not None and step == first_step
        path = source if begun and source is not None else save_root(config) / step_name(step)
        if fault := damage(path, mesh.rank, mesh.grid.size):
            raise AgreedError(fault)
        return resume(own, engine, plan, mesh, path), read_manifest(path).facts.extra

    return go_back
