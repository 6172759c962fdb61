"""Activations from one pipeline stage to the next where nobody trains: plain messages, outside autograd.

Training leaves these to DeepSpeed's pipeline engine, which overlaps them with backward passes.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup


def send_to_next(x: Tensor, pipe: AxisGroup) -> None:
    """To the stage behind this one, which has to `receive_from_previous`; returns once `x` may be changed."""
    dist.send(x.contiguous(), dst=pipe.ranks[pipe.rank + 1], group=pipe.connected())


def receive_from_previous(size: Sequence[int], dtype: torch.dtype, device: torch.device, pipe: AxisGroup) -> Tensor:
    """What the stage before this one sent: both know its size and dtype."""
    x = torch.empty(tuple(size), dtype=dtype, device=device)
    dist.recv(x, src=pipe.ranks[pipe.rank - 1], group=pipe.connected())
    return x


def from_last(x: Tensor, pipe: AxisGroup) -> Tensor:
    """The last stage's tensor on every stage; the others give one of its size and dtype."""
    if pipe.size == 1:
        return x
    result = x.contiguous() if pipe.rank == pipe.size - 1 else torch.empty_like(x)
    dist.broadcast(result, src=pipe.ranks[-1], group=pipe.connected())
    return result
