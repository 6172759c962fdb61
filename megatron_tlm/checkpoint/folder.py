"""Folders that cannot be written: what the system says of them, and what helps."""

import errno
import os
from pathlib import Path

from megatron_tlm.errors import ConfigError

_ELSEWHERE = {
    errno.EEXIST: "a file is in its place, give another folder",
    errno.ENOTDIR: "a file is in the place of a folder above it, give another folder",
    errno.ENOENT: "no folder can be made there, give another one",
    errno.EACCES: "take the right to write there, or give another folder",
    errno.EPERM: "take the right to write there, or give another folder",
    errno.EROFS: "give a folder on a file system that can be written",
    errno.ENAMETOOLONG: "give a shorter path",
}


def way_out(error: OSError, otherwise: str = "make room there or save elsewhere") -> str:
    """What a person can do about it; `otherwise` where the reason tells no more than that it did not work."""
    return _ELSEWHERE.get(error.errno or 0, otherwise)


def require_writable(folder: Path, address: str) -> None:
    """Makes the folder and writes a file in it, which goes again. ConfigError, under `address`, where that fails."""
    # Other ranks do the same at the same time.
    probe = folder / f".probe-{os.environ.get('RANK', '0')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"{address} = {folder} cannot be written ({error.strerror}); {way_out(error)}") from error
