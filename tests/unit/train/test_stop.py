"""Signals as wishes."""

import os
import signal
import threading

import pytest

from megatron_tlm.train.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_wish_and_handlers_come_back(number: signal.Signals) -> None:
    former = {other: signal.getsignal(other) for other in (signal.SIGTERM, signal.SIGINT)}
    with StopRequest() as stop:
        assert not stop.agreed()
        os.kill(os.getpid(), number)
        assert stop.agreed()
        assert signal.getsignal(number) == former[number], "a second signal ends the process"
    assert {other: signal.getsignal(other) for other in former} == former


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen = []

    def inside() -> None:
        with StopRequest() as stop:
            seen.append(stop.agreed())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [False]
