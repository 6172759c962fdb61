"""Arrays that are built once and shared: by the processes of a node through one mapping, by later runs through disk.

    {folder}/{digest of the description}/{name}.npy, cache.json

An entry appears by rename. What is no longer what `cache.json` says it is, such as a file cut short, is built again.
No process group is needed: whoever comes first builds, the others of the same disk wait for its lock.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.errors import DataError

META = "cache.json"
Arrays = dict[str, NDArray[Any]]


def cached_arrays(folder: Path, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """The arrays of `build`, mapped from the folder where they lie there already, or from now on.

    The description names everything that shapes them. DataError where the folder cannot be written.
    """
    key = sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:32]
    entry = folder / key
    found = _load(entry, description)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f".{key}.lock"):
            found = _load(entry, description)  # another process may have built it meanwhile
            if found is None:
                _store(entry, description, build())
                found = _load(entry, description)
    except OSError as error:
        raise DataError(
            f"data.data_cache_path = {folder} cannot be written ({error.strerror}); give another folder or make room"
        ) from error
    if found is None:
        raise DataError(f"data.data_cache_path = {entry} is not what was just written; give a folder on a sound disk")
    return found


def _load(entry: Path, description: Mapping[str, Any]) -> Arrays | None:
    """None for an entry that is absent, cut short or of something else."""
    try:
        meta = json.loads((entry / META).read_bytes())
        if meta["description"] != json.loads(json.dumps(description)):
            return None
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in meta["arrays"]}
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return arrays if all(_kind(arrays[name]) == kind for name, kind in meta["arrays"].items()) else None


def _kind(array: NDArray[Any]) -> list[Any]:
    return [str(array.dtype), list(array.shape)]


def _store(entry: Path, description: Mapping[str, Any], arrays: Arrays) -> None:
    partial = entry.with_name(f".{entry.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for name, array in arrays.items():
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        kinds = {name: _kind(array) for name, array in arrays.items()}
        (partial / META).write_text(json.dumps({"description": description, "arrays": kinds}, indent=1))
        shutil.rmtree(entry, ignore_errors=True)
        partial.rename(entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Where the disk knows no locks, several may build the same: the bytes are equal, the last rename stays."""
    with path.open("a") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
