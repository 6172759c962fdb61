"""How far a job that counts bytes is, for a person at a terminal or a reader of a log."""

import sys
import time
from typing import Self


class Meter:
    """Bytes done, rate and time left on stderr: a line rewritten on a terminal, a line now and then in a log."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._on_terminal = sys.stderr.isatty()
        self._started = self._told = time.perf_counter()

    def __call__(self, done: int, whole: int) -> None:
        now = time.perf_counter()
        if now - self._told < (0.2 if self._on_terminal else 10):
            return
        self._told = now
        rate = done / (now - self._started)
        line = (
            f"{self._text} {done / 1e9:.2f} of {whole / 1e9:.2f} GB ({100 * done / whole:.0f} %), "
            f"{rate / 1e6:.0f} MB/s, {(whole - done) / rate:.0f} s left"
        )
        print(f"\r\033[K{line}" if self._on_terminal else line, end="" if self._on_terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
