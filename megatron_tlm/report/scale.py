"""Numbers on an axis: where its ticks stand, what they are called, and fewer points that look the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAGNITUDES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """Maps values from `first` to `last` onto pixels from `start` to `stop`, by logarithm where `log`."""

    first: float
    last: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.first, self.last, value))
        return self.start + (at - low) / (high - low) * (self.stop - self.start)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values from at or below `low` to at or above `high`, steps of 1, 2 or 5 times a power of ten."""
    size = max(abs(low), abs(high))
    if not high - low > max(size * 1e-9, 1e-100):  # ticks of twelve digits could not tell them apart
        pad = size * 0.05 if size > 1e-100 else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around the values, 1, 2 and 5 times them where they are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if last - first > 2:
        every = math.ceil((last - first) / 7)
        return [10.0**power for power in range(first, last + every, every)]
    fine = [size * 10.0**power for power in range(first, last + 1) for size in (1, 2, 5)]
    below = max(place for place, tick in enumerate(fine) if tick <= low * 1.000001)
    above = min(place for place, tick in enumerate(fine) if tick >= high * 0.999999)
    return fine[below : max(above, below + 1) + 1]


def short_number(value: float) -> str:
    """`12.5k`, `0.003`, `1e-06`: what fits beside a tick or into a cell."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    for size, name in MAGNITUDES:
        if abs(value) >= size * (0.9995 if size > 1e3 else 10):
            return f"{value / size:.4g}{name}"
    return f"{value:.2g}" if abs(value) < 1e-4 else f"{value:.5g}"


def size_text(size_bytes: float) -> str:
    """`1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            # Three figures, but for what would then be 1e+03.
            return f"{size_bytes:.0f} {unit}" if unit == "B" or abs(size_bytes) >= 999.5 else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"


def thin(xs: Sequence[float], ys: Sequence[float], most: int = 800) -> tuple[list[float], list[float]]:
    """At most about `most` of the points, the lowest and highest of every stretch among them, and both ends."""
    if len(xs) <= most:
        return list(xs), list(ys)
    stretches = max(most // 2 - 1, 1)
    kept = {0, len(xs) - 1}
    for part in range(stretches):
        places = range(part * len(xs) // stretches, (part + 1) * len(xs) // stretches)
        kept |= {min(places, key=ys.__getitem__), max(places, key=ys.__getitem__)}
    return [xs[place] for place in sorted(kept)], [ys[place] for place in sorted(kept)]


def smoothed(ys: Sequence[float], span: int) -> list[float]:
    """The mean of about `span` values around each, of fewer near the ends: what bends does not lag behind."""
    sums, half = [0.0, *accumulate(ys)], span // 2
    windows = ((max(place - half, 0), min(place + half + 1, len(ys))) for place in range(len(ys)))
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in windows]
