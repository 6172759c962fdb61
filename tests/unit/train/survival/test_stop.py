"""Signals, a file and a clock as wishes."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from megatron_tlm.comm.torchrun import stop_with_launcher
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.train.survival import stop as stop_module
from megatron_tlm.train.survival.stop import LOST_LAUNCHER, STOPPING, StopRequest

NOTHING = ResilienceConfig()


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_is_a_wish_and_handlers_come_back(number: signal.Signals) -> None:
    former = {other: signal.getsignal(other) for other in STOPPING}
    with StopRequest(NOTHING) as stop:
        assert stop.agreed() is None
        os.kill(os.getpid(), number)
        assert stop.agreed() == number.name
    assert {other: signal.getsignal(other) for other in former} == former


def sent(*numbers: signal.Signals, apart: float) -> int:
    """How a process ends that is sent `numbers` and then finishes its work, in 0.2 s."""
    child = os.fork()
    if child == 0:
        stop_module.SAME_WISH_SECONDS = 0.1
        with StopRequest(NOTHING) as stop:
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(apart)
            os._exit(0 if stop.agreed() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_second_signal_ends_the_process_unless_it_is_the_same_wish() -> None:
    term, interrupt, warning = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
    assert sent(term, term, apart=0.01) == 0
    assert sent(term, term, apart=0.2) == -term
    assert sent(term, interrupt, apart=0.2) == -interrupt
    assert sent(warning, term, apart=0.2) == 0
    assert sent(warning, warning, apart=0.2) == -warning
    assert sent(warning, term, term, apart=0.2) == -term


def of_an_orphan(*numbers: signal.Signals, then: signal.Signals | None = None) -> str:
    """What a rank makes of `numbers`, of its torchrun's end, and of one more signal."""
    reader, writer = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        os.environ["TORCHELASTIC_RUN_ID"] = "run"
        ready, ready_writer = os.pipe()
        parent = os.getpid()
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()  # it dies thread by thread
        if os.fork() == 0:
            stop_with_launcher()
            with StopRequest(NOTHING) as stop:
                for number in numbers:
                    os.kill(os.getpid(), number)
                os.write(ready_writer, b".")
                deadline = time.monotonic() + 10
                while os.getppid() == parent and time.monotonic() < deadline:
                    time.sleep(0.01)
                if then is not None:
                    os.kill(os.getpid(), then)
                os.write(writer, str(stop.agreed()).encode())
            os._exit(0)
        os.read(ready, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(launcher, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        return said.read().decode()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_a_torchrun_that_is_gone_is_no_wish_but_after_one_it_is() -> None:
    assert of_an_orphan() == LOST_LAUNCHER
    # Slurm's warning goes to torchrun too, which dies of it.
    assert of_an_orphan(signal.SIGUSR1) == "SIGUSR1"
    # Its scheduler asks those that are left to stop: it is a failure all the same.
    assert of_an_orphan(then=signal.SIGTERM) == LOST_LAUNCHER


def test_the_stop_file_is_seen_by_rank_0_alone(tmp_path: Path) -> None:
    config = ResilienceConfig(stop_file=str(tmp_path / "stop"))
    first, second = StopRequest(config), StopRequest(config, rank=1)
    assert first.agreed() is None
    (tmp_path / "stop").touch()
    assert first.agreed() == f"stop file {tmp_path / 'stop'}"
    assert second.agreed() is None


def test_the_duration_is_measured_from_the_start_of_the_run() -> None:
    config = ResilienceConfig(exit_duration_in_mins=2)
    assert StopRequest(config, began=time.monotonic() - 119).agreed() is None
    assert StopRequest(config, began=time.monotonic() - 121).agreed() == "exit duration 2 minutes"
    assert StopRequest(config, rank=1, began=time.monotonic() - 121).agreed() is None


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen = []

    def inside() -> None:
        with StopRequest(NOTHING) as stop:
            seen.append(stop.agreed())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [None]
