"""What the facts of a log have to be, for a page to be made of them: of any other kind they count as not logged.

A page is made of whatever lies in a folder: lines of another version, lines that a full disk cut, a stranger's.

    kinds   float, int (a number that can be drawn), dict (any), {name: kind} (all of them there), [kind] (of each item)
"""

from collections.abc import Mapping
from typing import Any

LARGEST = 1e100  # a figure beyond is none, and its axis would leave the floats

PLAN = {
    "widths": [int],
    "units": [{"name": str}],
    "stages": [
        {
            "first_unit": str,
            "last_unit": str,
            "parameters": float,
            "cost": float,
            "bubble": float,
            "memory_bytes": {"total": float},
        }
    ],
    "bubble": float,
    "imbalance": float,
}
_FACTS = {
    "step": int,
    "time": float,
    "train_steps": int,
    "tokens_per_step": int,
    "hosts": int,
    "restarts": int,
    "steps_again": int,
    "seconds_again": float,
    "seconds_down": float,
    "bytes": float,
    "seconds": float,
    "stall_seconds": float,
    **dict.fromkeys(("model", "layout", "plan", "versions"), dict),
}
_RANKS = {"start": int, "straggler": [dict]}


def fitting(event: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an event that are of their kind, or of no kind that matters."""
    kind = event.get("event")
    kinds = _FACTS | ({"ranks": _RANKS[kind]} if isinstance(kind, str) and kind in _RANKS else {})
    return {name: value for name, value in event.items() if name not in kinds or fits(value, kinds[name])}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a kind; of what a list or a dict holds too."""
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], kind[name]) for name in kind)
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(item, kind[0]) for item in value)
    if kind in (int, float):
        return number(value) is not None and not (kind is int and isinstance(value, float))
    return isinstance(value, kind)


def number(value: Any) -> float | None:
    """A figure as a float; None for what is no number, or none that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)
