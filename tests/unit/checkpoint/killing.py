"""A job killed, kill -9, at every point where it changes the disk: one forked child for each."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.checkpoint.tensor_file import TensorFileWriter

torch.set_num_threads(1)  # a pool of threads does not survive a fork

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
MOST_POINTS = 10_000


def kill_everywhere(job: Callable[[Path], object], folder: Path) -> int:
    """`job(folder / "0")` dies before its first change of the disk, `job(folder / "1")` before its second ...

    Changes are the system calls of CALLS and every write of tensors. Returns how many there are; the job of that
    number was not killed.
    """
    for at in range(MOST_POINTS):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                _die_at(at)
                job(folder / str(at))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return at
        assert code == -signal.SIGKILL, f"point {at}: exit code {code}"
    raise AssertionError(f"no end after {MOST_POINTS} points")


def _die_at(at: int) -> None:
    """In a child: counts the calls down, and dies instead of the one behind `at` others."""
    left = [at]

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **kwargs)

        return counted

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))
    TensorFileWriter._write = dying(TensorFileWriter._write)  # type: ignore[method-assign]
