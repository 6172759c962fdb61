"""How fast a run is, as plain arithmetic on what the plan counted and the clock said."""

import math
from dataclasses import dataclass

# Dense bf16 tensor-core peak in TFLOP/s, without sparsity, by a part of the device's name; the first match counts.
PEAK_TFLOPS = (
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("B100", 1750.0),
    ("GH200", 989.4),
    ("H200", 989.4),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.4),
    ("H800", 989.4),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("A40", 149.7),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
    ("MI325X", 1307.4),
    ("MI300X", 1307.4),
    ("MI250X", 383.0),
)


@dataclass(frozen=True)
class Speed:
    """Of the whole run: tokens per second. Of one device: model TFLOP/s, and that over the device's peak if known."""

    tokens_per_second: float
    tflops_per_device: float
    mfu: float | None


def peak_tflops(device_name: str) -> float | None:
    """The bf16 peak of a device that torch calls `device_name`; None for one that is not in the table."""
    return next((peak for part, peak in PEAK_TFLOPS if part.lower() in device_name.lower()), None)


def measure(tokens: int, seconds: float, *, flops_per_token: int, num_devices: int, peak: float | None) -> Speed:
    """The speed of `tokens` trained in `seconds`: forward and backward of the model, recomputation not counted."""
    tokens_per_second = tokens / max(seconds, 1e-9)
    tflops = tokens_per_second * flops_per_token / num_devices / 1e12
    return Speed(tokens_per_second, tflops, None if peak is None else tflops / peak)


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that leaves the floats."""
    return math.inf if loss >= 700 else math.exp(loss)


def duration(seconds: float) -> str:
    """`2d 03:04:05`, as short as it can be."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def flop_rate(tflops: float) -> str:
    """`412 TFLOP/s` of a GPU, `12.3 GFLOP/s` of a CPU's core."""
    told = short(tflops * 1e12)
    figure = told.rstrip("kMGT")
    return f"{figure} {told.removeprefix(figure)}FLOP/s"


def short(value: float) -> str:
    """Three digits and a magnitude: 12.3k, 4.56M."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"
