"""What a configuration comes to on this node: all that `train` itself would refuse, the plan, the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from megatron_tlm.config.check import check
from megatron_tlm.config.schema import Config
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.loader import corpora
from megatron_tlm.data.vocabulary import read_vocabulary
from megatron_tlm.doctor.finding import Finding, failed, passed, refused, skipped, warned
from megatron_tlm.doctor.folders import folder_findings
from megatron_tlm.doctor.machine import available_memory
from megatron_tlm.errors import TlmError
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.train.engines.build import choose_backend
from megatron_tlm.train.engines.deepspeed_config import check_deepspeed
from megatron_tlm.train.prepare import prepare
from megatron_tlm.train.saving.resume import find_resume

NO_PLAN = "not judged: a configuration that is refused has no plan"
T = TypeVar("T")


@dataclass(frozen=True)
class Examined:
    """A configuration looked at on one node; `plan` is None where there can be none.

    `digests` are those of the corpora by path, None of one that cannot be read here.
    """

    findings: tuple[Finding, ...]
    plan: Plan | None
    digests: Mapping[str, str | None]


def examine(config: Config, world_size: int, ranks_here: int) -> Examined:
    """Everything that needs no other rank, also where `train` would refuse one thing of it.

    The sample order is not built, that may take minutes.
    """
    parts = _Parts()
    prepared = parts.look("configuration", lambda: prepare(config, world_size))
    # By itself: a fault of the data, say, leaves the plan what it is.
    plan = parts.look("plan", lambda: _plan(config, world_size)) if prepared is None else prepared.plan
    if prepared is not None:
        grid = prepared.plan.grid
        parts.found.append(
            passed("configuration", f"tensor {grid.tensor} x pipe {grid.pipe} x data {grid.data} = {grid.size} ranks")
        )
    parts.found.append(skipped("memory", NO_PLAN) if plan is None else planned_memory(config, plan, ranks_here))
    digests = _data(config, parts)
    source = parts.look("goes on from", lambda: find_resume(config.checkpoint, []))
    if source is not None:
        parts.found.append(passed("goes on from", str(source)))
    steps = config.training.train_iters if prepared is None else prepared.train_steps
    parts.found += folder_findings(config, plan, steps)
    if plan is None and config.checkpoint.save is not None:
        parts.found.append(skipped("room for checkpoints", NO_PLAN))
    return Examined(tuple(parts.found), plan, digests)


def unread(refusal: TlmError) -> list[Finding]:
    """What there is to say of a configuration that cannot be read."""
    rows = ("memory", "data", "folders")
    return [refused("configuration", refusal), *(skipped(row, "not judged: see the configuration") for row in rows)]


@dataclass
class _Parts:
    """What was found so far; a fault that shows in several places is told once."""

    found: list[Finding] = field(default_factory=list)

    def look(self, check: str, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except (TlmError, OSError) as error:
            fault = refused(check, error)
            if all(fault.text != other.text for other in self.found):
                self.found.append(fault)
        return None


def _plan(config: Config, world_size: int) -> Plan:
    degree = check(config, world_size)
    check_deepspeed(config)
    return build_plan(config, read_vocabulary(config)[1], data=degree)


def planned_memory(config: Config, plan: Plan, ranks_here: int) -> Finding:
    """The plan's fullest rank against what a rank of this node has."""
    peak = max(use.total for use in plan.memory)
    has = rank_memory(config, ranks_here)
    text = f"{gibibytes(peak)} on the fullest rank by the plan, {gibibytes(has)} for each of {ranks_here} here"
    on_device = choose_backend(config) == "nccl"
    if peak > has and on_device:
        remedy = "lower --micro-batch-size, add --recompute-granularity full, or spread the model over more ranks"
        return failed("memory", text, remedy)
    if peak > 0.9 * has:
        return warned("memory", text, "leave a tenth free, more on a CPU: fragments and libraries take room too")
    return passed("memory", text)


def rank_memory(config: Config, ranks_here: int) -> int:
    """Bytes that one rank of this node may use."""
    if choose_backend(config) == "nccl" and torch.cuda.is_available():
        return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    return available_memory() // max(ranks_here, 1)


def _data(config: Config, parts: _Parts) -> dict[str, str | None]:
    """The fingerprint of every corpus by its path, None of one that cannot be read."""
    if config.data.mock_data:
        parts.found.append(passed("data", "made up"))
    digests: dict[str, str | None] = {}
    for prefix in parts.look("data", lambda: corpora(config.data, valid=True)) or ():
        digest = parts.look(f"data {prefix}", lambda path=prefix: IndexedDataset(path).digest)  # type: ignore[misc]
        digests[prefix] = digest
        if digest is not None:
            parts.found.append(passed(f"data {prefix}", f"fingerprint {digest[:12]}"))
    return digests
