"""Devices: peak arithmetic, memory, links. Predicted seconds follow from them, or better from a measured profile.

The numbers are the makers' (dense, without sparsity); `efficiency` is the share of the peak that large products reach
in training, 0.5 unless a profile says otherwise.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatron_tlm.errors import PlanError

GIBIBYTE = 2**30


@dataclass(frozen=True)
class Hardware:
    """A device and its neighbours; rates are per device and second, link rates in one direction."""

    name: str
    bf16_flops: float
    fp32_flops: float
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    devices_per_node: int = 8
    efficiency: float = 0.5
    message_latency: float = 2e-5
    kernel_latency: float = 5e-6

    def flops(self, bf16: bool) -> float:
        """Arithmetic that training reaches per second."""
        return (self.bf16_flops if bf16 else self.fp32_flops) * self.efficiency

    def bandwidth(self, span: int) -> float:
        """Bytes per second between ranks that lie within `span` consecutive ranks."""
        return self.link_bandwidth if span <= self.devices_per_node else self.network_bandwidth


HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        "a100": Hardware("a100", 312e12, 19.5e12, 80 * GIBIBYTE, 2.0e12, 300e9, 25e9),
        "h100": Hardware("h100", 989e12, 67e12, 80 * GIBIBYTE, 3.35e12, 450e9, 50e9),
        "h200": Hardware("h200", 989e12, 67e12, 141 * 10**9, 4.8e12, 450e9, 50e9),
        "b200": Hardware("b200", 2250e12, 75e12, 180 * 10**9, 7.7e12, 900e9, 50e9),
        "cpu": Hardware("cpu", 5e10, 1e11, 16 * GIBIBYTE, 2e10, 2e9, 1e9, devices_per_node=2, efficiency=1.0),
    }
)


def find_hardware(name: str) -> Hardware:
    """PlanError for a device that is not described, naming those that are."""
    if name not in HARDWARE:
        raise PlanError(f"hardware = {name!r} is not among the {len(HARDWARE)} known; use {', '.join(HARDWARE)}")
    return HARDWARE[name]


SIZES: Mapping[str, int] = MappingProxyType(
    {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    | {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
)


def parse_bytes(text: str) -> int:
    """A size such as 80GiB, 80 GB or 1000; PlanError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*?)[bB]?\s*", text)
    unit = f"{match[2].lower()}b" if match and match[2] else ""
    if match is None or unit not in SIZES or float(match[1]) <= 0:
        raise PlanError(f"gpu_memory = {text!r} is no size above 0; write 80GiB, 80GB or a number of bytes")
    return int(float(match[1]) * SIZES[unit])


@dataclass(frozen=True)
class UnitSeconds:
    """Measured seconds of a unit for one micro-batch on one rank; `width` tells MLPs apart.

    With a `name` it is of that unit alone, as a run measured it where it stood.
    """

    kind: str
    width: int | None
    forward: float
    backward: float
    name: str | None = None


@dataclass(frozen=True)
class Profile:
    """What was measured on a device, and for which workload: it holds for that one alone.

    A message of n bytes between neighbouring stages takes `message_latency` + n / `message_bandwidth` seconds; a
    bandwidth of 0 says that messages were not measured. `update_seconds` are per parameter.
    """

    device: str
    seq_length: int
    micro_batch_size: int
    tensor_degree: int
    bf16: bool
    recompute: str | None
    hidden_size: int
    units: tuple[UnitSeconds, ...]
    message_latency: float = 0.0
    message_bandwidth: float = 0.0
    update_seconds: float = 0.0
    notes: str = field(default="", compare=False)

    def seconds(self, kind: str, width: int | None, name: str | None = None) -> tuple[float, float]:
        """Forward and backward of a unit: its own where it was measured, else those of its kind.

        MLPs of other widths lie on the line through their neighbours.
        """
        own = [unit for unit in self.units if unit.kind == kind]
        if not own:
            raise PlanError(f"profile of {self.device} holds 0 units of kind {kind}; measure it again")
        named = [unit for unit in own if name is not None and (unit.name, unit.width) == (name, width)]
        if named:
            return named[0].forward, named[0].backward
        if kind != "mlp" or width is None:
            return _mean(own)
        widths = sorted({unit.width or 0 for unit in own})
        if len(widths) == 1:
            return _mean(own)
        upper = next((index for index, known in enumerate(widths) if known >= width), len(widths) - 1)
        low, high = widths[max(0, upper - 1)], widths[max(1, upper)]
        share = (width - low) / (high - low)
        below, above = (_mean([unit for unit in own if unit.width == known]) for known in (low, high))
        forward, backward = (max(a + share * (b - a), 0.0) for a, b in zip(below, above, strict=True))
        return forward, backward

    def message_seconds(self, size_bytes: int) -> float | None:
        """Of one message between neighbouring stages; None where messages were not measured."""
        return self.message_latency + size_bytes / self.message_bandwidth if self.message_bandwidth else None

    def save(self, path: Path) -> None:
        """JSON, written beside the configuration."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def _mean(units: Sequence[UnitSeconds]) -> tuple[float, float]:
    return sum(unit.forward for unit in units) / len(units), sum(unit.backward for unit in units) / len(units)


def load_profile(path: Path) -> Profile:
    """The inverse of `Profile.save`; PlanError for a file that is not one."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Profile(**(values | {"units": tuple(UnitSeconds(**unit) for unit in values["units"])}))
    except OSError as error:
        raise PlanError(f"profile = {path} cannot be read ({error.strerror}); make one with plan --profile") from error
    except (ValueError, TypeError, KeyError) as error:
        raise PlanError(f"profile = {path} is no profile ({error}); make one with plan --profile") from error
