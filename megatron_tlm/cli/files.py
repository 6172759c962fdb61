"""Files that a command is asked to write: what cannot be is told before anything takes its time.

One rule for all of them: the folder of a file has to be there. Folders (--save, --log-dir, --report-dir) are made.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatron_tlm.errors import ConfigError

STANDARD_OUTPUT = "-"
PLOT_ENDINGS = (".png", ".svg", ".pdf")


def check_file(flag: str, name: str, endings: Sequence[str] = ()) -> Path:
    """The file; ConfigError where it cannot be written, or its ending is none of `endings`."""
    target = Path(name)
    fault = _fault(name, target, endings)
    if fault is not None:
        wanted = f"give a {', '.join(endings)} file" if endings else "give a file"
        raise ConfigError(
            f"{flag} = {name or '(empty)'} cannot be written: {fault}; {wanted} in a folder that is there"
        )
    return target


def check_plot(name: str | None) -> Path | None:
    """The file of --plot: matplotlib adds .png to a name without an ending."""
    return None if name is None else check_file("--plot", name, PLOT_ENDINGS)


def check_json(name: str | None) -> Path | None:
    """The file of --json; None for standard output, and where it was not asked for."""
    return None if name in (None, STANDARD_OUTPUT) else check_file("--json", name)


@contextmanager
def writing(flag: str, target: Path) -> Iterator[None]:
    """Within, what the system refuses is a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{flag} = {target} cannot be written ({error.strerror or error}); give another file"
        ) from error


def _fault(name: str, target: Path, endings: Sequence[str]) -> str | None:
    if not name:
        return "it names no file"
    if target.is_dir():
        return "it is a folder"
    if endings and target.suffix.lower() not in endings:
        return f"'{target.suffix}' is none of the endings {', '.join(endings)}"
    if not target.parent.is_dir():
        return f"there is no folder {target.parent}"
    # A pipe or a device is written into, a file replaced in its folder.
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        return "the system does not allow it"
    return None
