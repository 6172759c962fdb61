"""The known name that an unknown one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

# Below it names that only share a word pass for each other.
CLOSE = 0.7
# An abbreviation keeps at least one letter in so many.
LONGEST_ABBREVIATED = 4


def nearest(name: str, known: Iterable[str], *, cutoff: float = CLOSE) -> str | None:
    """The one it abbreviates, else the closest; case, hyphens and underscores aside. None where nothing is close."""
    plain = {_plain(item): item for item in known}
    longest = LONGEST_ABBREVIATED * len(name)
    longer = [item for item in plain if item.startswith(_plain(name)) and len(item) <= longest]
    found = longer if len(longer) == 1 else get_close_matches(_plain(name), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown name: the nearest one, or every one there is."""
    known = tuple(known)
    match = nearest(name, known)
    return f"did you mean {match}?" if match else f"there are {', '.join(known)}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
