"""Runs a function on several forked gloo ranks: `run_ranks(4, function, *args)` -> each rank's result, in rank order.

Forking starts two ranks in 0.4 s where spawning takes 20 s, most of it imports. The parent may not have started
torch's thread pool before it forks, or the ranks hang: hence one thread, set when this module is imported, which
pytest does while it collects.
"""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.comm.groups import init_distributed, shutdown

torch.set_num_threads(1)

GRACE_SECONDS = 1.0  # after the first failure: the others may be about to say more


class RankError(AssertionError):
    """A rank raised, died or did not end in time; the message holds its traceback."""


def run_ranks(num_ranks: int, function: Callable[..., Any], *args: Any, timeout_seconds: float = 60.0) -> list[Any]:
    """`function(rank, *args)` on each rank of a gloo world; results are pickled, ranks that linger are killed."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=_rank_main, args=(folder, rank, num_ranks, function, args, timeout_seconds))
            for rank in range(num_ranks)
        ]
        for process in ranks:
            process.start()
        try:
            _wait(ranks, folder, timeout_seconds)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(num_ranks)]


def _rank_main(
    folder: Path, rank: int, num_ranks: int, function: Callable[..., Any], args: tuple[Any, ...], seconds: float
) -> None:
    # What torchrun would set: DeepSpeed reads it. The loopback spares gloo a look-up of the host's name.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), GLOO_SOCKET_IFNAME="lo")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        init_distributed(
            "gloo",
            timedelta(seconds=seconds),
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=num_ranks,
        )
        result = pickle.dumps(function(rank, *args))
        shutdown()
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    (folder / f"result-{rank}.partial").write_bytes(result)
    (folder / f"result-{rank}.partial").rename(folder / f"result-{rank}")
    os._exit(0)


def _wait(ranks: list[BaseProcess], folder: Path, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while any(process.exitcode is None for process in ranks):
        if any(process.exitcode for process in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    codes = [process.exitcode for process in ranks]
    if all(code == 0 for code in codes):
        return
    errors = sorted(folder.glob("error-*"), key=lambda path: path.stat().st_mtime_ns)
    told = "\n".join(f"{path.name}:\n{path.read_text()}" for path in errors)
    raise RankError(f"exit codes of {len(ranks)} ranks: {codes} (None: still running, killed)\n{told}")
