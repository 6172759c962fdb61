"""One collective on each axis: is the sum right, how long does the smallest take, how fast is a large one?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatron_tlm.comm.collectives import sum_over
from megatron_tlm.comm.groups import AXES, AxisGroup, Mesh
from megatron_tlm.doctor.finding import Finding, failed, passed, warned
from megatron_tlm.errors import few

LARGE_BYTES = 8 << 20
REPEATS = 5
# A group that is this much slower than the median of its axis is worth a look.
SLOW = 3.0


@dataclass(frozen=True)
class Measured:
    """An axis from one rank: `seconds` of an all-reduce of one number, `bytes_per_second` of a large one."""

    ranks: tuple[int, ...]
    right: bool
    seconds: float
    bytes_per_second: float


def measure_axes(mesh: Mesh, device: torch.device) -> dict[str, Measured]:
    """Collective. Every axis with more than one rank, in the same order on all."""
    return {name: _measure(axis, device) for name in AXES if (axis := getattr(mesh, name)).size > 1}


def _measure(axis: AxisGroup, device: torch.device) -> Measured:
    small = torch.full((1,), float(axis.ranks[axis.rank] + 1), device=device)
    right = sum_over(small, axis).item() == sum(rank + 1 for rank in axis.ranks)
    large = torch.full((LARGE_BYTES // 4,), float(axis.rank + 1), device=device)
    total = sum_over(large, axis)
    right = right and bool((total == axis.size * (axis.size + 1) / 2).all())
    seconds = _fastest(small, axis)
    return Measured(axis.ranks, right, seconds, LARGE_BYTES / _fastest(large, axis))


def _fastest(x: torch.Tensor, axis: AxisGroup) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        sum_over(x, axis)[:1].item()  # waits for a device too
        times.append(time.perf_counter() - start)
    return min(times)


def axis_findings(told: Sequence[Mapping[str, Mapping[str, Any]]], nodes: Sequence[str]) -> list[Finding]:
    """Of every rank's measurements (as JSON) and the node of each rank, a row an axis."""
    found = []
    for name in AXES:
        groups: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
        for axes in told:
            if name in axes:
                groups.setdefault(tuple(axes[name]["ranks"]), []).append(axes[name])
        if groups:
            found.append(_axis_finding(name, groups, nodes))
    return found


def _axis_finding(
    name: str, groups: Mapping[tuple[int, ...], Sequence[Mapping[str, Any]]], nodes: Sequence[str]
) -> Finding:
    wrong = [ranks for ranks, members in groups.items() if not all(member["right"] for member in members)]
    if wrong:
        return failed(
            f"axis {name}",
            f"an all-reduce gave a wrong sum on ranks {few(wrong[0], 8)} ({_nodes(wrong[0], nodes)})",
            "take those devices or links out of service: memory or network corrupts data",
        )
    rates = {ranks: min(member["bytes_per_second"] for member in members) for ranks, members in groups.items()}
    latency = max(member["seconds"] for members in groups.values() for member in members)
    slowest = min(rates, key=lambda ranks: rates[ranks])
    where = "between nodes" if len({nodes[rank] for rank in slowest}) > 1 else "inside a node"
    text = (
        f"{len(slowest)} ranks {where}: sums right, {1e3 * latency:.2g} ms an all-reduce, "
        f"{rates[slowest] / 2**30:.2g} GiB/s of 8 MiB ones"
    )
    if len(groups) > 1:
        text += f", the slowest of {len(groups)} groups"
    middle = sorted(rates.values())[len(rates) // 2]
    if middle > SLOW * rates[slowest]:
        return warned(
            f"axis {name}",
            f"{text}: ranks {few(slowest, 8)} ({_nodes(slowest, nodes)}), {middle / rates[slowest]:.1f} times slower "
            "than the median",
            "look at those nodes' link: cable, speed, interface",
        )
    if name == "tensor" and where == "between nodes":
        return warned(f"axis {name}", text, "keep the tensor degree within a node: every layer waits for this axis")
    return passed(f"axis {name}", text)


def _nodes(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(nodes[rank] for rank in ranks[:8]))
