"""How far a job of equal steps is, and when it will end: for a person at a terminal or a reader of a log."""

import sys
import time
from typing import Self

from megatron_tlm.data.progress import clock

TERMINAL_SECONDS, LOG_SECONDS = 0.2, 10.0


class Countdown:
    """Steps done, rate and time left on stderr: a line rewritten on a terminal, a line now and then in a log.

    `speaks`: whether this process is the one to tell.
    """

    def __init__(self, text: str, unit: str = "batch", *, speaks: bool = True) -> None:
        self._text, self._unit, self._speaks = text, unit, speaks
        self._on_terminal = sys.stderr.isatty()
        self._started = self._told = time.perf_counter()

    def __call__(self, done: int, whole: int) -> None:
        now = time.perf_counter()
        if not self._speaks or now - self._told < (TERMINAL_SECONDS if self._on_terminal else LOG_SECONDS):
            return
        self._told = now
        line = self._line(done, whole, now - self._started)
        print(f"\r\033[K{line}" if self._on_terminal else line, end="" if self._on_terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def _line(self, done: int, whole: int, seconds: float) -> str:
        return (
            f"{self._text}: {self._unit} {done} of {whole} ({100 * done // whole} %), {done / seconds:.3g} a second, "
            f"{clock(seconds * (whole - done) / done)} left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._speaks and self._on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
