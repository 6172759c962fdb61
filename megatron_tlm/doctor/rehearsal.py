"""All ranks together, before the run: the same code and data, one clock, shared folders, every axis, one step.

Each chapter ends at the launcher's store, not in a collective, so that a rank whose network is broken can still say so
and the others do not wait for it. What a failure leaves in doubt is told as left out, all else is looked at.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.comm.groups import (
    Mesh,
    barrier,
    build_mesh,
    default_backend,
    init_distributed,
    lone_store,
    new_groups_wait,
)
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.schema import Config
from megatron_tlm.doctor.axes import axis_findings, measure_axes
from megatron_tlm.doctor.finding import Finding, failed, merged, passed, refused, skipped, warned
from megatron_tlm.doctor.folders import written_folders
from megatron_tlm.doctor.run import NO_PLAN, Examined
from megatron_tlm.doctor.step import step_findings, take_step
from megatron_tlm.errors import TlmError, few
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.grid import Grid
from megatron_tlm.train.engines.build import choose_backend, training_device
from megatron_tlm.train.survival.rank_facts import check_facts, node, told_facts
from megatron_tlm.train.survival.rank_work import unshared

# Between nodes; what a barrier adds is a thousandth of it.
CLOCK_WARN_SECONDS, CLOCK_FAIL_SECONDS = 1.0, 30.0
MUST_SHARE = "checkpoint.save"
ALIKE = "all ranks alike"


@dataclass(frozen=True)
class Rehearsal:
    """What every rank brings; `config` and `examined` are None where no configuration was given, or `refusal` says why
    it cannot be read."""

    meeting: Meeting
    config: Config | None
    examined: Examined | None
    local: Sequence[Finding]  # of this node; its first rank alone looks
    timeout: timedelta
    step: bool = True
    refusal: str | None = None


@dataclass(frozen=True)
class _Chapter:
    """`act` on every rank, then `judge` on what all got; left out where a check failed whose name begins as one of
    `needs`."""

    name: str
    needs: tuple[str, ...]
    act: Callable[[], Any]
    judge: Callable[[Sequence[Any]], list[Finding]]


def rehearse(rehearsal: Rehearsal) -> list[Finding]:
    """Collective. Every finding of every node, the same list on all ranks."""
    found = _rehearse(rehearsal)
    # The store goes with rank 0, perhaps.
    rehearsal.meeting.decide("end", None, lambda told: None)
    rehearsal.meeting.dismiss("end")
    return found


def _rehearse(rehearsal: Rehearsal) -> list[Finding]:
    meeting, found = rehearsal.meeting, list[Finding]()
    told = {
        "node": node(),
        "findings": [item.to_json() for item in rehearsal.local],
        "facts": _facts(rehearsal),
        "data": [] if rehearsal.examined is None else list(rehearsal.examined.digests.values()),
    }
    found += _findings(meeting.decide("nodes", told, _meet_nodes))
    if rehearsal.config is not None:
        for address, folder in written_folders(rehearsal.config).items():
            needs = (ALIKE, address)
            found += _left_out(f"{address} shared", needs, found) or _folder(meeting, address, folder)
    for chapter in _chapters(rehearsal, _common_plan(rehearsal, found)):
        found += _left_out(chapter.name, chapter.needs, found) or _take(rehearsal, chapter)
    return found


def _common_plan(rehearsal: Rehearsal, found: Sequence[Finding]) -> Plan | None:
    """None where any rank has none: a layout is all ranks' or nobody's."""
    plan = None if rehearsal.examined is None else rehearsal.examined.plan
    if _in_doubt((ALIKE,), found) is not None:
        return None
    return plan if rehearsal.meeting.decide("plan", plan is not None, all) else None


def _left_out(name: str, needs: tuple[str, ...], found: Sequence[Finding]) -> list[Finding]:
    """A row that says why, where something that is needed failed or was left out itself."""
    cause = _in_doubt(needs, found)
    return [] if cause is None else [skipped(name, f"not tried, for {cause}: see there")]


def _in_doubt(needs: tuple[str, ...], found: Sequence[Finding]) -> str | None:
    """The first check of those needed that failed or was left out."""
    return next((row.check for row in found if row.status in ("fail", "skip") and row.check.startswith(needs)), None)


def _chapters(rehearsal: Rehearsal, plan: Plan | None) -> Iterator[_Chapter]:
    """`plan` is that of all ranks; without it the groups are made as for data parallelism alone."""
    config, mesh = rehearsal.config, list[Mesh]()
    listens = {"nccl": "NCCL"}.get(_backend(config), "gloo")
    yield _Chapter("groups", (ALIKE, listens), lambda: mesh.append(_join(rehearsal, plan)), _groups)
    yield _Chapter("clock", ("groups",), _clock, _clocks)
    yield _Chapter("axes", ("groups",), lambda: _axes(rehearsal, mesh[0]), _axis_rows)
    if not rehearsal.step or config is None:
        return
    if plan is None:
        yield _Chapter("step", ("groups",), lambda: None, lambda told: [skipped("step", NO_PLAN)])
    else:
        needs = ("groups", "axes", "axis")
        yield _Chapter("step", needs, lambda: take_step(config, plan, mesh[0]), lambda told: step_findings(told, plan))


def _take(rehearsal: Rehearsal, chapter: _Chapter) -> list[Finding]:
    """`act` on every rank; a rank that fails in it says why, and the judge hears of nothing but successes."""
    name, act, judge = chapter.name, chapter.act, chapter.judge
    fault, value = None, None
    try:
        with rehearsal.meeting.at_work():
            value = act()
    except (TlmError, OSError, RuntimeError, ValueError) as error:
        fault = refused(name, error) if isinstance(error, TlmError) else _broken(name, error)
    shown = None if fault is None else fault.to_json()
    told = {"node": node(), "rank": rehearsal.meeting.rank, "fault": shown, "value": value}

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
    if rehearsal.refusal is not None:
        return {"node": node(), "fault": rehearsal.refusal}
    return dict(told_facts(rehearsal.meeting, rehearsal.config))


def _meet_nodes(told: Sequence[Any]) -> list[dict[str, Any]]:
    by_node: dict[str, list[Finding]] = {}
    for item in filter(None, told):
        by_node.setdefault(item["node"], []).extend(Finding.from_json(finding) for finding in item["findings"])
    found = merged(list(by_node.items()))
    ranks = f"{len(told)} ranks on {len(by_node)} node{'s' if len(by_node) > 1 else ''}"
    found += _differences([item for item in told if item is not None], ranks, [item.text for item in found])
    return [finding.to_json() for finding in found]


def _differences(told: Sequence[Any], who: str, above: Sequence[str]) -> list[Finding]:
    """Between ranks: of code, versions and configuration, which all else stands on, and of data."""
    blind = [item for item in told if "fault" in item["facts"]]
    if blind and all(str(item["facts"]["fault"]).partition("; ")[0] in above for item in blind):
        return [skipped(ALIKE, f"not compared: {few(list(dict.fromkeys(item['node'] for item in blind)))}, see above")]
    fault = check_facts([item["facts"] for item in told])
    if fault is not None:
        return [refused(ALIKE, TlmError(fault))]
    return [passed(ALIKE, f"{who}: same code, versions and configuration"), *_data(told)]


def _data(told: Sequence[Any]) -> Iterator[Finding]:
    """Whether every corpus is the same one on all nodes that can read it; the others have told why they cannot."""
    corpora = list(zip(*(item["data"] for item in told), strict=False))
    for number, digests in enumerate(corpora):
        groups: dict[str, list[str]] = {}
        for item, digest in zip(told, digests, strict=True):
            if digest is not None:
                groups.setdefault(f"fingerprint {digest[:12]}", []).append(item["node"])
        if len(groups) > 1:
            parts = ", ".join(f"{digest} on {few(list(dict.fromkeys(nodes)))}" for digest, nodes in groups.items())
            remedy = "copy the .bin/.idx pair anew, `megatron-tlm data verify` prints the hash of one"
            yield failed("data alike", f"corpus {number + 1} = {parts}", remedy)
        elif groups:
            yield passed("data alike", f"corpus {number + 1}: {next(iter(groups))} wherever it can be read")


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


def _backend(config: Config | None) -> str:
    return choose_backend(config) if config is not None else default_backend()


def _join(rehearsal: Rehearsal, plan: Plan | None) -> Mesh:
    meeting, backend = rehearsal.meeting, _backend(rehearsal.config)
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
