"""The known name that an unknown one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The one it abbreviates, else the closest; case, hyphens and underscores aside. None where nothing is close."""
    plain = {_plain(item): item for item in known}
    longer = [item for item in plain if item.startswith(_plain(name))]
    found = longer if len(longer) == 1 else get_close_matches(_plain(name), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown name: the nearest one, or every one there is."""
    known = tuple(known)
    match = nearest(name, known)
    return f"did you mean {match}?" if match else f"there are {', '.join(known)}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
