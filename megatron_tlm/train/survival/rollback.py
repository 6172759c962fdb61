"""A running engine filled again with one of its run's own checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_directories, step_name, step_of
from megatron_tlm.comm.groups import Mesh, broadcast_object
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.run import GoBack
from megatron_tlm.train.saving.resume import Progress, damage, resume, save_root
from megatron_tlm.train.survival.agree import AgreedError, agree


def rollback(
    config: Config,
    engine: Engine,
    plan: Plan,
    mesh: Mesh,
    *,
    source: Path | None,
    first_step: int,
    tell: Callable[[str], None],
) -> GoBack:
    """To a step that this run saved, or to `source`, from which it started at `first_step`.

    Where that was damaged since, to the step before it in the same folder; `tell` hears what was passed over and why.
    AgreedError where none is whole.
    """
    # Which state was wanted at the start does not matter any more: this is the run's own.
    own = replace(config, checkpoint=replace(config.checkpoint, no_load_optim=False, finetune=False))

    def go_back(step: int) -> tuple[Progress, Mapping[str, Scalar]]:
        begun = source is not None and step == first_step
        path = source if begun and source is not None else save_root(config) / step_name(step)
        faults = []
        for candidate in broadcast_object(agree(lambda: [path, *_before(path, step)] if mesh.rank == 0 else [])):
            fault = damage(candidate, mesh.rank, mesh.grid.size)
            if fault is None:
                return resume(own, engine, plan, mesh, candidate), read_manifest(candidate).facts.extra
            faults.append(fault)
            tell(f"passed over {candidate.name}: {fault}")
        raise AgreedError(f"{path.parent} holds 0 whole checkpoints to go back to; {'; '.join(faults)}")

    return go_back


def _before(path: Path, step: int) -> list[Path]:
    """What lies beside `path` of smaller steps, saved last first."""
    return [other for other in step_directories(path.parent) if other != path and (step_of(other) or 0) < step]
