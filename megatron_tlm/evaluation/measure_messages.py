"""What a message between neighbouring stages costs: latency and bandwidth, for `plan --profile`.

The latency is a message's of one number; the bandwidth makes up for the rest of what a message of the run's own size
takes, so that the time of that one is exact.
"""

import json
import multiprocessing
import os
import socket
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch

from megatron_tlm.comm.groups import init_distributed, shutdown
from megatron_tlm.comm.messages import message_seconds
from megatron_tlm.errors import PlanError

SMALLEST_BYTES = 4
LONGEST_SECONDS = 120


class MessageCost(NamedTuple):
    """Seconds of a message without contents, and bytes a second beyond that."""

    latency: float
    bandwidth: float


def message_cost(size_bytes: int, smallest: float, own: float) -> MessageCost:
    """From the seconds of a message of SMALLEST_BYTES and of one of `size_bytes`; latency alone may not show."""
    if own <= smallest:
        return MessageCost(0.0, size_bytes / own)
    return MessageCost(smallest, size_bytes / (own - smallest))


def measure_messages(size_bytes: int, peer: int, device: torch.device) -> MessageCost:
    """Between rank 0 and `peer` of the world there is; collective."""
    smallest, own = message_seconds((SMALLEST_BYTES, size_bytes), peer, device)
    return message_cost(size_bytes, smallest, own)


def measure_messages_alone(size_bytes: int) -> MessageCost:
    """Between two gloo ranks of this machine's CPU, started for it. PlanError where they do not end."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="messages-") as folder:
        ends = [spawn.Process(target=_end, args=(folder, rank, size_bytes), daemon=True) for rank in (0, 1)]
        for process in ends:
            process.start()
        for process in ends:
            process.join(LONGEST_SECONDS)
        told = Path(folder) / "seconds"
        if not told.exists():
            codes = [process.exitcode for process in ends]
            for process in ends:
                process.kill()
            raise PlanError(
                f"messages = not measured, exit codes of 2 ranks: {codes} (None: not done in {LONGEST_SECONDS} s); "
                "measure under torchrun --nproc-per-node 2"
            )
        smallest, own = json.loads(told.read_text(encoding="utf-8"))
    return message_cost(size_bytes, smallest, own)


def _end(folder: str, rank: int, size_bytes: int) -> None:
    """One end of the messages."""
    torch.set_num_threads(1)
    if "lo" in {name for _, name in socket.if_nameindex()}:
        # Both are here: gloo need not find out what this machine is called.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = timedelta(seconds=LONGEST_SECONDS)
    init_distributed("gloo", timeout, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    seconds = message_seconds((SMALLEST_BYTES, size_bytes), 1, torch.device("cpu"))
    if rank == 0:
        (Path(folder) / "seconds").write_text(json.dumps(seconds), encoding="utf-8")
    shutdown()
