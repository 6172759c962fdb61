"""A log that cannot be written is told once, and the run goes on."""

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.logs import log as log_module
from megatron_tlm.train.logs.board import Board
from megatron_tlm.train.logs.log import WritingLog
from megatron_tlm.train.logs.log_guard import LogGuard, quiet_board_thread
from tests.unit.train.logs.test_log import SCALE, report


def full(*anything: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_first_fault_of_each_log_is_told() -> None:
    said: list[str] = []
    guard = LogGuard(said.append)
    for log in ("a", "a", "b", "a"):
        guard.write(log, full)
    guard.close("a", full)
    assert said == [
        f"{log} = not written any more (No space left on device); training goes on without it, "
        "make room for the next run"
        for log in ("a", "b")
    ]


def test_a_log_that_failed_is_written_no_more_but_closed() -> None:
    done: list[str] = []
    guard = LogGuard(lambda text: None)
    guard.write("a", full)
    guard.write("a", lambda: done.append("written"))
    guard.close("a", lambda: done.append("closed"))
    guard.close("b", lambda: done.append("b closed"))
    assert done == ["closed", "b closed"]


def test_a_bug_is_not_a_full_disk() -> None:
    with pytest.raises(ZeroDivisionError):
        LogGuard(lambda text: None).write("a", lambda: 1 / 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full for everybody is Linux's")
def test_a_full_disk_ends_the_logs_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = WritingLog(LoggingConfig(log_interval=1, log_dir=str(tmp_path)), SCALE, 0, "")
    log.step(report(1))
    metrics = log._metrics
    assert metrics is not None
    with open("/dev/full", "w") as disk:
        os.dup2(disk.fileno(), metrics._file.fileno())
    monkeypatch.setattr(Board, "scalars", lambda self, step, samples, values: full())
    monkeypatch.setattr(log_module, "write_loss_plot", full)
    for step in range(2, 5):
        log.step(report(step))
    log.evaluation(4, 16, 1.0)
    log.close()
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("iteration ")]) == 4
    for name in ("metrics.jsonl", "TensorBoard", "loss.png"):
        assert len([line for line in said if line.startswith(f"{name} = not written any more (No space")]) == 1


def test_tensorboards_thread_dies_quietly_and_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    log = WritingLog(LoggingConfig(log_interval=1, tensorboard_dir=str(tmp_path)), SCALE, 0, "")
    monkeypatch.setattr(RecordWriter, "write", full)
    for step in range(1, 30):
        log.step(report(step))
    log.close()
    out, err = capfd.readouterr()
    assert out.count("TensorBoard = not written any more (No space left on device)") == 1
    assert err == ""


def test_other_threads_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Mapping[str, object] | BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda fault: heard.append(fault.exc_value))
    with quiet_board_thread():
        other = threading.Thread(target=full)
        other.start()
        other.join()
    assert len(heard) == 1
