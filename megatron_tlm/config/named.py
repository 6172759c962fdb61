"""Sets of data that a user gives names to: `NAME=PREFIX`."""

import re
from collections.abc import Sequence

from megatron_tlm.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9._-]+")  # what a curve can be called in every place that shows it


def named_sets(words: Sequence[str], address: str) -> dict[str, str]:
    """Name -> prefix, in the order given. ConfigError for a word without either, a strange name, a name given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, prefix = word.partition("=")
        if not equals or not prefix or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{address} = {word!r} is not NAME=PREFIX; give each set a name of letters, digits, '.', '_', '-' and "
                "the prefix of its .bin/.idx pair"
            )
        if name in found:
            raise ConfigError(f"{address} = {name} is the name of {found[name]} and of {prefix}; give each its own")
        found[name] = prefix
    return found
