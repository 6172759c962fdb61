"""What a rank and its launcher owe each other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_tlm.comm.torchrun import ended_for_good, leave_word, restart_count

WORKER = """
import signal, sys, time
from pathlib import Path
from megatron_tlm.comm.torchrun import LAUNCHER_GONE, stop_with_launcher
def leave(number, frame):
    Path(sys.argv[1]).write_text("asked to stop")
    sys.exit()
signal.signal(LAUNCHER_GONE, leave)
stop_with_launcher()
print("ready", flush=True)
time.sleep(30)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_the_last_word_is_where_torchrun_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "attempt_0" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(target))
    leave_word("a = 1 is below 2; give 2")
    told = json.loads(target.read_text())["message"]
    assert told["message"] == "a = 1 is below 2; give 2"
    assert int(told["extraInfo"]["timestamp"]) <= time.time()


def test_a_word_for_good_is_read_at_the_next_start_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(count: int, rank: int = 0) -> None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"attempt_{count}" / str(rank) / "error.json"))

    start(0, rank=1)
    leave_word("a = 1 is below 2; give 2", for_good=True)
    assert ended_for_good() is None, "of the same start"
    start(1)
    assert ended_for_good() == "a = 1 is below 2; give 2", "another rank's, of this node"
    leave_word("a node is gone")
    start(2)
    assert ended_for_good() is None
    (tmp_path / "attempt_1" / "0" / "error.json").write_text('{"message": "torch wrote this"}')
    assert ended_for_good() is None
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert ended_for_good() is None


def test_a_word_that_cannot_be_left_is_no_second_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "file" / "error.json"))
    leave_word("x")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    leave_word("x")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
@pytest.mark.parametrize("launched", [True, False])
def test_a_worker_is_asked_to_stop_when_its_launcher_is_killed(tmp_path: Path, launched: bool) -> None:
    told = tmp_path / "told"
    environment = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    environment |= {"TORCHELASTIC_RUN_ID": "1"} if launched else {}
    command = [sys.executable, "-c", LAUNCHER, "import os; print(os.getpid());" + WORKER, str(told)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        launcher.wait()
        until = time.monotonic() + (10 if launched else 0.5)
        while time.monotonic() < until and not told.exists():
            time.sleep(0.02)
        assert told.exists() is launched
        if not launched:
            os.kill(worker, signal.SIGKILL)


def test_torchrun_counts_its_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert restart_count() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restart_count() == 2


STUCK_LAUNCHER = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
script = "from megatron_tlm.comm.torchrun import end_stuck_launcher; end_stuck_launcher(1)"
rank = subprocess.Popen([sys.executable, "-c", script])
if sys.argv[1] == "alive":
    rank.wait()
time.sleep(6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="zombies are looked for in /proc")
@pytest.mark.parametrize(("launcher", "code"), [("stuck", -signal.SIGKILL), ("alive", 0)])
def test_a_launcher_that_does_not_see_its_rank_end_is_ended(
    launcher: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    paths = f"{Path(__file__).resolve().parents[3]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", paths)
    assert subprocess.run([sys.executable, "-c", STUCK_LAUNCHER, launcher], timeout=60, check=False).returncode == code
