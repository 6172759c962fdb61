"""A folder has one writer, until it lets go or dies."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_tlm.checkpoint.lock import LOCK_NAME, FolderLock
from megatron_tlm.errors import CheckpointError

HOLD = """
import sys
from megatron_tlm.checkpoint.lock import FolderLock

lock = FolderLock(sys.argv[1])
print("held", flush=True)
input()
"""


def test_a_second_writer_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    root = tmp_path / "new" / "ck"
    with FolderLock(root):
        with pytest.raises(CheckpointError, match=r"ck is held by another run; wait for it or save to another folder"):
            FolderLock(root)
        FolderLock(tmp_path / "other").release()
    assert list(root.iterdir()) == []
    FolderLock(root).release()


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CheckpointError, match="held by another run"):
            FolderLock(tmp_path)
        other.kill()
        other.wait()
    assert (tmp_path / LOCK_NAME).exists()
    FolderLock(tmp_path).release()


def test_a_file_removed_by_its_former_holder_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (tmp_path / LOCK_NAME).unlink())
    with pytest.raises(CheckpointError, match="held by another run"):
        FolderLock(tmp_path)


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    another_s = tmp_path / ".step-00000020.partial"
    another_s.mkdir()
    with FolderLock(tmp_path):
        FolderLock(tmp_path).release()
    assert another_s.exists()


def test_what_a_killed_run_left_goes_when_the_lock_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".step-00000020.partial" / "inner").mkdir(parents=True)
    FolderLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"file cannot be written \(File exists\); a file is in its place"):
        FolderLock(tmp_path / "file")
