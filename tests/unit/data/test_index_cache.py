"""Arrays on disk: what was built, only for what they were built for, and never half of them."""

import os
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data.index_cache import META, Arrays, cached_arrays
from megatron_tlm.errors import DataError


class Builder:
    """Counts how often it is asked."""

    def __init__(self, size: int = 100) -> None:
        self.size, self.count = size, 0

    def __call__(self) -> Arrays:
        self.count += 1
        return {"a": np.arange(self.size, dtype=np.int32), "b": np.zeros((3, 2))}


def entry(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if path.is_dir())
    return found


def test_what_lies_there_is_not_built_again(tmp_path: Path) -> None:
    builder = Builder()
    for _ in range(3):
        arrays = cached_arrays(tmp_path / "cache", {"seed": 1}, builder)
        assert arrays["a"].tolist() == list(range(100))
        assert arrays["b"].shape == (3, 2)
    assert builder.count == 1


def test_another_description_is_another_entry(tmp_path: Path) -> None:
    cached_arrays(tmp_path, {"seed": 1}, Builder(5))
    assert len(cached_arrays(tmp_path, {"seed": 2}, Builder(6))["a"]) == 6
    assert len(cached_arrays(tmp_path, {"seed": 1}, Builder(7))["a"]) == 5


@pytest.mark.parametrize("damage", ["cut", "gone", "no meta", "cut meta", "other meta", "other array"])
def test_what_is_damaged_is_built_again(tmp_path: Path, damage: str) -> None:
    cached_arrays(tmp_path, {"seed": 1}, Builder())
    array, meta = entry(tmp_path) / "a.npy", entry(tmp_path) / META
    if damage == "cut":
        os.truncate(array, array.stat().st_size - 4)
    elif damage == "gone":
        array.unlink()
    elif damage == "no meta":
        meta.unlink()
    elif damage == "cut meta":
        os.truncate(meta, 30)
    elif damage == "other meta":
        meta.write_text(meta.read_text().replace('"seed": 1', '"seed": 2'))
    else:
        np.save(array, np.zeros(99, np.int32))
    builder = Builder()
    assert cached_arrays(tmp_path, {"seed": 1}, builder)["a"].tolist() == list(range(100))
    assert builder.count == 1


def test_a_failing_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> Arrays:
        raise DataError("too short")

    with pytest.raises(DataError, match="too short"):
        cached_arrays(tmp_path, {"seed": 1}, fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data_cache_path = .*file cannot be written \(.*exists"):
        cached_arrays(tmp_path / "file", {"seed": 1}, Builder())


def test_processes_that_come_together_build_once(tmp_path: Path) -> None:
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:

            def build() -> Arrays:
                descriptor = os.open(tmp_path / "built", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
                os.write(descriptor, b"x")
                return Builder()()

            arrays = cached_arrays(tmp_path / "cache", {"seed": 1}, build)
            os._exit(0 if arrays["a"].tolist() == list(range(100)) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert (tmp_path / "built").read_bytes() == b"x"
