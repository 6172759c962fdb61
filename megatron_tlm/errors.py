"""The exception tree: everything this package raises on purpose.

Each message is one sentence, `<address> = <value> <broken rule>; <way out>`, with both numbers in it.
"""

from collections.abc import Sequence


class TlmError(Exception):
    """A mistake that the user can mend: shown without a traceback, exit code 2.

    `passing` where it may be gone at the next start without anybody's doing; others no restart mends.
    """

    passing = False


class ConfigError(TlmError):
    """A value, key or flag that cannot be meant."""


class PlanError(TlmError):
    """Sizes that do not fit each other: widths, heads, stages, ranks."""


class DataError(TlmError):
    """A corpus, tokenizer or index that cannot be used as it is."""


class CheckpointError(TlmError):
    """A checkpoint that is absent, incomplete, damaged or of another model."""


class HeldError(CheckpointError):
    """A folder of checkpoints that another run writes in."""

    passing = True


class CommError(TlmError):
    """Ranks that cannot talk to each other as the layout asks."""

    passing = True


class ExportError(TlmError):
    """A model that another format cannot hold, or another program's files that cannot be read."""


def few(names: Sequence[object], most: int = 3) -> str:
    """For a sentence: the first of several names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
