"""All ranks together, before the run: the same code and data, one clock, shared folders, every axis, one step.

Each chapter ends at the launcher's store, not in a collective, so that a rank whose network is broken can still say so
and the others do not wait for it. The first chapter with a failure is the last.
"""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.comm.groups import Mesh, barrier, build_mesh, init_distributed, lone_store, new_groups_wait
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig
from megatron_tlm.data.loader import micro_batches
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.doctor.axes import axis_findings, measure_axes
from megatron_tlm.doctor.finding import Finding, failed, healthy, merged, passed, refused, warned
from megatron_tlm.doctor.folders import written_folders
from megatron_tlm.doctor.run import Examined
from megatron_tlm.errors import TlmError
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.train.engines.build import build_engine, choose_backend, training_device
from megatron_tlm.train.survival.rank_facts import check_facts, node, told_facts
from megatron_tlm.train.survival.rank_work import unshared

# Between nodes; what a barrier adds is a thousandth of it.
CLOCK_WARN_SECONDS, CLOCK_FAIL_SECONDS = 1.0, 30.0
MUST_SHARE = "checkpoint.save"


@dataclass(frozen=True)
class Rehearsal:
    """What every rank brings; `config` and `examined` are None where no configuration was given."""

    meeting: Meeting
    config: Config | None
    examined: Examined | None
    local: Sequence[Finding]  # of this node; its first rank alone looks
    timeout: timedelta
    step: bool = True

    @property
    def plan(self) -> Plan | None:
        return None if self.examined is None or self.examined.prepared is None else self.examined.prepared.plan


def rehearse(rehearsal: Rehearsal) -> list[Finding]:
    """Collective. Every finding of every node, the same list on all ranks."""
    found = _rehearse(rehearsal)
    # The store goes with rank 0, perhaps.
    rehearsal.meeting.decide("end", None, lambda told: None)
    rehearsal.meeting.dismiss("end")
    return found


def _rehearse(rehearsal: Rehearsal) -> list[Finding]:
    meeting, found = rehearsal.meeting, list[Finding]()
    told = {"node": node(), "findings": [item.to_json() for item in rehearsal.local], "facts": _facts(rehearsal)}
    found += _findings(meeting.decide("nodes", told, _meet_nodes))
    if not healthy(found):
        return found
    if rehearsal.config is not None:
        for address, folder in written_folders(rehearsal.config).items():
            found += _folder(meeting, address, folder)
    mesh: list[Mesh] = []
    chapters: list[tuple[str, Callable[[], Any], Callable[[Sequence[Any]], list[Finding]]]] = [
        ("groups", lambda: mesh.append(_join(rehearsal)), _groups),
        ("clock", _clock, _clocks),
        ("axes", lambda: _axes(rehearsal, mesh[0]), _axis_rows),
    ]
    if rehearsal.step and rehearsal.config is not None and rehearsal.plan is not None:
        config, plan = rehearsal.config, rehearsal.plan
        chapters.append(("step", lambda: _step(config, plan, mesh[0]), lambda told: _steps(told, plan)))
    for name, act, judge in chapters:
        if not healthy(found):
            break
        found += _chapter(rehearsal, name, act, judge)
    return found


def _chapter(
    rehearsal: Rehearsal, name: str, act: Callable[[], Any], judge: Callable[[Sequence[Any]], list[Finding]]
) -> list[Finding]:
    """`act` on every rank; a rank that fails in it says why, and the judge hears of nothing but successes."""
    fault, value = None, None
    try:
        with rehearsal.meeting.at_work():
            value = act()
    except (TlmError, OSError, RuntimeError, ValueError) as error:
        fault = refused(name, error) if isinstance(error, TlmError) else _broken(name, error)
    told = {"node": node(), "rank": rehearsal.meeting.rank, "fault": None if fault is None else fault.to_json()}
    told["value"] = None if name == "groups" else value

    def all_told(everybody: Sequence[Any]) -> list[dict[str, Any]]:
        faults = [(item["node"], [Finding.from_json(item["fault"])]) for item in everybody if item["fault"]]
        rows = merged(faults) if faults else judge(everybody)
        if faults:
            rows = [replace(row, where=row.where or tuple(dict.fromkeys(at for at, _ in faults))) for row in rows]
        return [row.to_json() for row in rows]

    return _findings(rehearsal.meeting.decide(name, told, all_told))


def _broken(name: str, error: Exception) -> Finding:
    text = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no words'}"
    remedies = {
        "groups": "name the interface that the nodes share, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, and open all "
        "ports between them",
        "step": "see the words of that rank; lower --micro-batch-size where memory ran out",
    }
    return failed(name, text, remedies.get(name, "see the words of that rank, and the nodes' link"))


def _facts(rehearsal: Rehearsal) -> dict[str, Any]:
    facts = dict(told_facts(rehearsal.meeting, rehearsal.config))
    digests = () if rehearsal.examined is None else rehearsal.examined.digests
    corpora = {f"data corpus {number + 1}": digest for number, digest in enumerate(digests)}
    facts["same"] = facts.get("same", {}) | corpora
    return facts


def _meet_nodes(told: Sequence[Any]) -> list[dict[str, Any]]:
    by_node: dict[str, list[Finding]] = {}
    for item in filter(None, told):
        by_node.setdefault(item["node"], []).extend(Finding.from_json(finding) for finding in item["findings"])
    found = merged(list(by_node.items()))
    fault = check_facts([item and item["facts"] for item in told])
    ranks = f"{len(told)} ranks on {len(by_node)} node{'s' if len(by_node) > 1 else ''}"
    if fault is not None:
        found.append(refused("all ranks alike", TlmError(fault)))
    else:
        found.append(passed("all ranks alike", f"{ranks}: same code, versions, configuration and data"))
    return [finding.to_json() for finding in found]


def _findings(told: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return [Finding.from_json(item) for item in told]


def _folder(meeting: Meeting, address: str, folder: Path) -> list[Finding]:
    """Whether all ranks see one folder; only `save` has to be one."""
    fault = unshared(meeting, folder, address)
    if fault is None:
        return [passed(f"{address} shared", f"all ranks see {folder}")]
    if address == MUST_SHARE:
        return [refused(f"{address} shared", TlmError(fault))]
    return [passed(f"{address} local", f"{fault.split(';')[0]}: fine, each node has its own")]


def _join(rehearsal: Rehearsal) -> Mesh:
    meeting, config, plan = rehearsal.meeting, rehearsal.config, rehearsal.plan
    backend = choose_backend(config) if config is not None else ("nccl" if torch.cuda.is_available() else "gloo")
    store = meeting.store or lone_store()
    with new_groups_wait(rehearsal.timeout):
        init_distributed(backend, rehearsal.timeout, rank=meeting.rank, world_size=meeting.world_size, store=store)
        mesh = build_mesh(Grid(data=meeting.world_size) if plan is None else plan.grid)
    barrier()
    return mesh


def _groups(told: Sequence[Any]) -> list[Finding]:
    return [passed("groups", f"{len(told)} ranks are connected")]


def _clock() -> float:
    barrier()
    return time.time()


def _clocks(told: Sequence[Any]) -> list[Finding]:
    """Of each rank's clock just behind one barrier."""
    first = told[0]["value"]
    apart = max(told, key=lambda item: abs(item["value"] - first))
    seconds = apart["value"] - first
    text = f"{apart['node']} is {abs(seconds):.3f} s {'ahead of' if seconds > 0 else 'behind'} {told[0]['node']}"
    remedy = "start chronyd or ntpd on both: logs and heartbeats are told by these clocks"
    if abs(seconds) >= CLOCK_FAIL_SECONDS:
        return [failed("clock", text, remedy)]
    if abs(seconds) >= CLOCK_WARN_SECONDS:
        return [warned("clock", text, remedy)]
    return [passed("clock", f"all within {abs(seconds):.3f} s")]


def _axes(rehearsal: Rehearsal, mesh: Mesh) -> dict[str, Any]:
    device = training_device(rehearsal.config) if rehearsal.config is not None else torch.device("cpu")
    return {name: asdict(measured) for name, measured in measure_axes(mesh, device).items()}


def _axis_rows(told: Sequence[Any]) -> list[Finding]:
    return axis_findings([item["value"] for item in told], [item["node"] for item in told])


def _step(config: Config, plan: Plan, mesh: Mesh) -> dict[str, Any]:
    """One optimizer step of the run's own model and layout on made-up data, from fresh weights; nothing is written."""
    alone = replace(config, data=DataConfig(mock_data=True), checkpoint=CheckpointConfig())
    device = training_device(config)
    before = _peak_bytes(device)
    engine = build_engine(alone, plan, mesh)
    batch = plan.micro_batches * config.training.micro_batch_size * plan.grid.data
    data = micro_batches(
        MockDataset(2 * batch, plan.seq_length, plan.shape.vocab_size, config.training.seed),
        start_sample=0,
        micro_batch_size=config.training.micro_batch_size,
        global_batch_size=batch,
        data_rank=mesh.data.rank,
        data_size=mesh.data.size,
    )
    start = time.perf_counter()
    result = engine.train_step(data, config.optimizer.lr)
    seconds = time.perf_counter() - start
    taken = _peak_bytes(device) - (0 if device.type == "cuda" else before)
    return {
        "seconds": seconds,
        "loss": result.loss,
        "stage": mesh.coordinate.pipe,
        "peak": taken,
        "device": device.type,
    }


def _peak_bytes(device: torch.device) -> int:
    """Of torch's allocator on a GPU; on the CPU the largest resident size so far of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _steps(told: Sequence[Any], plan: Plan) -> list[Finding]:
    values = [item["value"] for item in told]
    slowest = max(told, key=lambda item: item["value"]["seconds"])
    found = [
        passed(
            "step",
            f"loss {values[0]['loss']:.4f} after {slowest['value']['seconds']:.2f} s, the first of a process is the "
            "slowest",
        )
    ]
    losses = {f"{value['loss']:.6g}" for value in values}
    if len(losses) > 1:
        found = [failed("step", f"ranks see {len(losses)} different losses of one step", "report this: it is a bug")]
    fullest = max(told, key=lambda item: item["value"]["peak"] - plan.memory[item["value"]["stage"]].total)
    value = fullest["value"]
    planned = plan.memory[value["stage"]].total
    who = f"rank {fullest['rank']} on {fullest['node']}"
    text = f"{who} took {gibibytes(value['peak'])} of the plan's {gibibytes(planned)}"
    if value["device"] == "cuda" and value["peak"] > 1.1 * planned:
        found.append(warned("peak memory", text, "leave more room than the plan says"))
    else:
        found.append(passed("peak memory", text + ("" if value["device"] == "cuda" else ", by the process's growth")))
    return found
