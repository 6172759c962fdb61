"""How long a message takes from one rank to another, as the pipeline sends them: blocking, one at a time."""

import time
from collections.abc import Sequence
from statistics import median

import torch
import torch.distributed as dist

from megatron_tlm.comm.groups import broadcast_object

WARM_UP = 3


def message_seconds(sizes: Sequence[int], peer: int, device: torch.device, *, rounds: int = 15) -> list[float]:
    """Median seconds of a message of so many bytes, half of one there and back, between rank 0 and `peer`; collective.

    All ranks know the result; those that are neither end wait for it.
    """
    taken = [_half_round_trip(size, peer, device, rounds) for size in sizes]
    return broadcast_object(taken)


def _half_round_trip(size_bytes: int, peer: int, device: torch.device, rounds: int) -> float:
    rank, taken = dist.get_rank(), []
    buffer = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    dist.barrier()
    for _ in range(WARM_UP + rounds):
        begin = time.perf_counter()
        if rank == 0:
            dist.send(buffer, peer)
            dist.recv(buffer, peer)
        elif rank == peer:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append((time.perf_counter() - begin) / 2)
    return median(taken[WARM_UP:])
