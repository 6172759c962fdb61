"""What a configuration comes to on this node: all that `train` itself would refuse, the plan, the data."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from megatron_tlm.config.schema import Config
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.loader import corpora
from megatron_tlm.doctor.finding import Finding, failed, passed, refused, warned
from megatron_tlm.doctor.folders import folder_findings
from megatron_tlm.doctor.machine import available_memory
from megatron_tlm.errors import TlmError
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.train.engines.build import choose_backend
from megatron_tlm.train.prepare import Prepared, prepare


@dataclass(frozen=True)
class Examined:
    """A configuration looked at on one node; `prepared` is None where `train` would refuse it."""

    findings: tuple[Finding, ...]
    prepared: Prepared | None
    digests: tuple[str, ...]


def examine(config: Config, world_size: int, ranks_here: int) -> Examined:
    """Everything that needs no other rank; the sample order is not built, that may take minutes."""
    findings: list[Finding] = []
    try:
        prepared = prepare(config, world_size)
    except (TlmError, OSError) as error:
        findings.append(refused("configuration", error))
        findings += folder_findings(config, None, None)
        return Examined(tuple(findings), None, ())
    plan = prepared.plan
    grid = plan.grid
    findings.append(
        passed("configuration", f"tensor {grid.tensor} x pipe {grid.pipe} x data {grid.data} = {grid.size} ranks")
    )
    findings.append(planned_memory(config, plan, ranks_here))
    digests = tuple(IndexedDataset(prefix).digest for prefix in corpora(config.data, valid=True))
    findings += data_findings(config, digests)
    if prepared.source is not None:
        findings.append(passed("goes on from", str(prepared.source)))
    findings += folder_findings(config, plan, prepared.train_steps)
    return Examined(tuple(findings), prepared, digests)


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


def data_findings(config: Config, digests: tuple[str, ...]) -> Iterator[Finding]:
    if config.data.mock_data:
        yield passed("data", "made up")
        return
    for prefix, digest in zip(corpora(config.data, valid=True), digests, strict=True):
        yield passed(f"data {prefix}", f"fingerprint {digest[:12]}")
