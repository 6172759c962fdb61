"""Memory of the fullest rank: the device's under Megatron's names, the host's beside it.

mem-allocated-bytes, mem-max-allocated-bytes, mem-reserved-bytes    torch's allocator on a GPU: now, its peak, held
mem-rss-bytes, mem-max-rss-bytes                                    the process's resident memory: now, its peak
"""

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from megatron_tlm.comm.groups import all_reduce_max
from megatron_tlm.train.logs.watch import Moment

_STATM = Path("/proc/self/statm")


class MemoryWatch:
    """Looks at every log interval; the largest of each over all ranks."""

    def __init__(self, device: torch.device, interval: int) -> None:
        self._device, self._interval = device, interval

    def after_step(self, moment: Moment) -> Mapping[str, float]:
        if moment.step % self._interval:
            return {}
        own = memory(self._device)
        return dict(zip(own, all_reduce_max(list(own.values())), strict=True))

    def close(self) -> None:
        return


def memory(device: torch.device) -> dict[str, float]:
    """This process's, in bytes, by their names in TensorBoard."""
    found = {"mem-max-rss-bytes": peak_resident_bytes()}
    if _STATM.exists():
        now = float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # The kernel notes the peak now and then, and may be behind.
        found = {"mem-rss-bytes": now, "mem-max-rss-bytes": max(now, found["mem-max-rss-bytes"])}
    if device.type == "cuda":
        found |= {
            "mem-allocated-bytes": float(torch.cuda.memory_allocated(device)),
            "mem-max-allocated-bytes": float(torch.cuda.max_memory_allocated(device)),
            "mem-reserved-bytes": float(torch.cuda.memory_reserved(device)),
        }
    return found


def peak_resident_bytes() -> float:
    """Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
