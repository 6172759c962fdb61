"""One MLP width per layer under an exactly fixed budget (arXiv:2606.23670, schedules and rounding rule).

    ideal width          d(l) = d_end + (d_start - d_end) * fall(l / (L - 1)),   fall from 1 to 0
    then, in multiples   floor everything, and give the multiples still owed to the largest remainders

For a schedule symmetric about the baseline (start + end = 2, as in the paper) that is rounding to the nearest
multiple. Otherwise the interior is first shifted, within [end, start], until its total is the budget's.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil, cos, exp, floor, gcd, inf, lcm, pi
from types import MappingProxyType

from megatron_tlm.errors import PlanError

SIGMOID_STEEPNESS = 10.0

FALLS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "linear": lambda x: 1 - x,
        "cosine": lambda x: (1 + cos(pi * x)) / 2,
        "sigmoid": lambda x: 1 / (1 + exp(SIGMOID_STEEPNESS * (x - 0.5))),
    }
)
WIDE_GROUP: Mapping[str, int] = MappingProxyType({"wider-early": 0, "wider-middle": 1, "wider-late": 2})
SCHEDULES = ("uniform", *FALLS, *WIDE_GROUP)


def taper_widths(
    num_layers: int,
    baseline: int,
    *,
    schedule: str = "cosine",
    start: float = 1.5,
    end: float = 0.5,
    multiple: int = 16,
) -> tuple[int, ...]:
    """The MLP width of each layer: every one a multiple of `multiple`, their mean exactly `baseline`.

    `linear`, `cosine` and `sigmoid` run monotonically from exactly `start * baseline` to exactly `end * baseline`
    (rising where start < end). `uniform` ignores both. `wider-early`, `-middle` and `-late` cut the depth into three
    groups, as equal as L allows; the named one gets `start * baseline`, the other two share the rest evenly.
    One layer has the baseline. PlanError where no such widths exist, naming the nearest request that has them.
    """
    if num_layers < 1 or baseline < 1 or multiple < 1:
        raise PlanError(
            f"num_layers = {num_layers}, baseline = {baseline}, multiple = {multiple} are not all positive; "
            "give 1 or more"
        )
    if schedule not in SCHEDULES:
        raise PlanError(f"taper_schedule = {schedule!r} is not known; choose one of {', '.join(SCHEDULES)}")
    for name, ratio in (("taper_start", start), ("taper_end", end)):
        if not 0 < ratio < inf:
            raise PlanError(f"{name} = {ratio:g} is not a positive ratio; the paper uses 1.5 and 0.5")
    if schedule == "uniform" or num_layers == 1:
        _require_multiples(baseline, multiple, num_layers, ())
        return (baseline,) * num_layers
    if schedule in WIDE_GROUP:
        return _grouped(num_layers, baseline, WIDE_GROUP[schedule], start, multiple)
    if start < end:
        return _tapered(num_layers, baseline, FALLS[schedule], end, start, multiple, ("taper_end", "taper_start"))[::-1]
    return _tapered(num_layers, baseline, FALLS[schedule], start, end, multiple)


def _tapered(
    num_layers: int,
    baseline: int,
    fall: Callable[[float], float],
    start: float,
    end: float,
    multiple: int,
    names: tuple[str, str] = ("taper_start", "taper_end"),
) -> tuple[int, ...]:
    """`names` are the flags of the wide and of the narrow end."""
    ratios = tuple(zip(names, (start, end), strict=True))
    first, last = _require_multiples(baseline, multiple, num_layers, ratios)
    interior = num_layers - 2
    owed = num_layers * baseline - first - last
    if not interior * last <= owed <= interior * first:
        raise PlanError(
            f"{names[0]} = {start:g} and {names[1]} = {end:g} over {num_layers} layers cannot have the mean width "
            f"{baseline}: between the ends {first} and {last} the interior would need {owed} in all, but can have "
            f"{interior * last} to {interior * first}; {_feasible(num_layers, start, names)}"
        )
    falls = (fall(layer / (num_layers - 1)) for layer in range(1, num_layers - 1))
    ideal = [last + (first - last) * share for share in falls]
    units = _apportion(_shifted(ideal, owed, last, first), multiple, owed // multiple)
    return (first, *(count * multiple for count in units), last)


def _feasible(num_layers: int, wide: float, names: tuple[str, str]) -> str:
    """The narrow ends with which a wide one has the mean, none below it where 1 lies above or L below."""
    if wide < 1:
        return f"use {names[0]} = {2 - wide:g}: one of the two has to be 1 or more"
    if wide >= num_layers:
        return f"use a {names[0]} of less than {num_layers}, as many as there are layers"
    low, high = max(0.0, num_layers - (num_layers - 1) * wide), (num_layers - wide) / (num_layers - 1)
    if low <= 2 - wide <= high and wide < 2:
        return f"use {names[1]} = {2 - wide:g}"
    # Rounded inwards.
    return f"use a {names[1]} from {max(ceil(low * 1000) / 1000, 0.001):g} to {floor(high * 1000) / 1000:g}"


def _grouped(num_layers: int, baseline: int, wide: int, start: float, multiple: int) -> tuple[int, ...]:
    if num_layers < 3:
        raise PlanError(f"num_layers = {num_layers} cannot form three groups; use 3 layers or more")
    ((width),) = _require_multiples(baseline, multiple, num_layers, (("taper_start", start),))
    borders = [round(group * num_layers / 3) for group in range(4)]
    is_wide = [borders[wide] <= layer < borders[wide + 1] for layer in range(num_layers)]
    others = is_wide.count(False)
    owed = num_layers * baseline - width * is_wide.count(True)
    if owed < others * multiple:
        limit = (num_layers * baseline - others * multiple) / (is_wide.count(True) * baseline)
        raise PlanError(
            f"taper_start = {start:g} leaves {owed} for {others} layers of at least {multiple}; "
            f"use a taper_start of at most {limit:.3g}"
        )
    rest = iter(_apportion([owed / others] * others, multiple, owed // multiple))
    return tuple(width if here else next(rest) * multiple for here in is_wide)


def _shifted(ideal: list[float], total: int, low: int, high: int) -> list[float]:
    """The ideal widths moved together, each kept within [low, high], until they sum to `total`."""
    down, up = float(low - high), float(high - low)
    shift = 0.0
    for _ in range(200):
        moved = [min(max(width + shift, low), high) for width in ideal]
        excess = sum(moved) - total
        if abs(excess) < 1e-6:
            break
        down, up = (down, shift) if excess > 0 else (shift, up)
        shift = (down + up) / 2
    return moved if ideal else []


def _apportion(ideal: list[float], multiple: int, units: int) -> list[int]:
    """Whole numbers of multiples that sum to `units`, each next to its ideal (largest remainders, earlier first)."""
    # Rounding hides the last bits of cos and division, which would otherwise decide ties.
    exact = [round(width / multiple, 6) for width in ideal]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: units - sum(counts)]:
        counts[i] += 1
    return counts


def _require_multiples(
    baseline: int, multiple: int, num_layers: int, ratios: tuple[tuple[str, float], ...]
) -> tuple[int, ...]:
    """The widths `ratio * baseline`; PlanError unless they and the total are positive multiples."""
    exact = [(name, Fraction(str(ratio)) * baseline) for name, ratio in ratios]
    total = num_layers * baseline
    # Without a ratio every layer has the baseline itself, so the baseline must be the multiple, not just the total.
    fixed = [value for _, value in exact] or [Fraction(baseline)]
    if total % multiple == 0 and all(value % multiple == 0 for value in fixed):
        return tuple(int(value) for value in fixed)
    steps = [_baseline_step(Fraction(str(ratio)), multiple) for _, ratio in ratios] or [multiple]
    step = lcm(*steps, multiple // gcd(num_layers, multiple))
    near = sorted({max(step, baseline // step * step), max(step, -(-baseline // step) * step)})
    asked = ", ".join(f"{name} x baseline = {float(value):g}" for name, value in exact) or f"baseline = {baseline}"
    whole = all(value.denominator == 1 for value in fixed)
    other = gcd(multiple, total, *(int(value) for value in fixed)) if whole else 0
    way_out = f"use a baseline width of {' or '.join(map(str, near))}" + (
        f", or width_multiple = {other}" if other else ""
    )
    raise PlanError(
        f"{asked}, the total of {num_layers} layers = {total}: not all multiples of width_multiple = {multiple} "
        f"at baseline width {baseline}; {way_out}"
    )


def _baseline_step(ratio: Fraction, multiple: int) -> int:
    """The smallest baseline for which `ratio * baseline` is a multiple of `multiple`."""
    needed = ratio.denominator * multiple
    return needed // gcd(ratio.numerator, needed)
