"""How far a job of equal steps is: a line now and then in a log, one rewritten line on a terminal."""

import io
import sys

import pytest

from megatron_tlm.cli import countdown
from megatron_tlm.cli.countdown import Countdown


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(countdown, "time", clock)
    return clock


def run(clock: Clock, *, speaks: bool = True) -> None:
    with Countdown("books", speaks=speaks) as meter:
        for done in (1, 2, 3):
            clock.now += 7.5
            meter(done, 9)


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run(clock)
    assert capsys.readouterr().err == "books: batch 2 of 9 (22 %), 0.133 a second, 0:00:52 left\n"


def test_a_terminal_gets_one_line_rewritten_and_in_the_end_gone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(clock)
    lines = terminal.getvalue().split("\r\033[K")
    assert [line[: len("books: batch n")] for line in lines] == ["", *(f"books: batch {n}" for n in (1, 2, 3)), ""]


def test_other_ranks_say_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run(clock, speaks=False)
    assert capsys.readouterr().err == ""
