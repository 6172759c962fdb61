"""Folders that cannot be written are found out by writing."""

import errno
import os
from pathlib import Path

import pytest

from megatron_tlm.checkpoint.folder import require_writable, way_out
from megatron_tlm.errors import ConfigError


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    require_writable(folder, "checkpoint.save")
    require_writable(folder, "checkpoint.save")
    assert list(folder.iterdir()) == []


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"checkpoint.save = \S+/file cannot be written \(File exists\); a file is"):
        require_writable(file, "checkpoint.save")
    with pytest.raises(ConfigError, match=r"\S+/file/x cannot be written \(Not a directory\); a file is in the place"):
        require_writable(file / "x", "checkpoint.save")


def test_a_place_without_folders_is_told() -> None:
    with pytest.raises(ConfigError, match=r"= /proc/nope cannot be written \(No such file or directory\); no folder"):
        require_writable(Path("/proc/nope"), "checkpoint.save")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "take the right to write there"),
        (errno.EROFS, "a file system that can be written"),
        (errno.ENOSPC, "make room there or save elsewhere"),
    ],
)
def test_the_advice_fits_the_fault(number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, data: bytes) -> int:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(ConfigError, match=advice):
        require_writable(tmp_path, "logging.log_dir")
    assert advice in way_out(OSError(number, ""))
