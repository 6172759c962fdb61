"""Process groups as values: one `AxisGroup` per mesh axis, handed to whoever needs it; nothing here is global.

Ranks are laid out by `plan.grid.Grid`: pipe slowest, data, tensor fastest. An axis of one rank has no process group at
all, so a single process needs no rendezvous and every collective on such an axis is the identity.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from megatron_tlm.comm.stuck import ends_when_stuck
from megatron_tlm.comm.waiting import WaitMeter
from megatron_tlm.errors import CommError
from megatron_tlm.plan.grid import Axis, Coordinate, Grid

T = TypeVar("T")
AXES: tuple[Axis, ...] = ("tensor", "data", "pipe")


@dataclass(frozen=True)
class AxisGroup:
    """The ranks that differ from this one along one axis only, and this rank's place among them."""

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None = None
    waiting: WaitMeter = field(default_factory=WaitMeter, compare=False, repr=False)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @classmethod
    def single(cls) -> "AxisGroup":
        """An axis of one rank: every collective on it is the identity."""
        return cls(ranks=(0,), rank=0)

    @classmethod
    def pretend(cls, size: int, rank: int) -> "AxisGroup":
        """Rank `rank` of `size` without peers: builds one rank's share of a model, but cannot communicate."""
        return cls(ranks=tuple(range(size)), rank=rank)

    def connected(self) -> dist.ProcessGroup:
        """The process group; CommError where there is none."""
        if self.group is None:
            raise CommError(f"axis group = ranks {self.ranks} has no process group; build it with build_mesh(grid)")
        return self.group


@dataclass(frozen=True)
class Mesh:
    """This rank's place in the grid, and its group along each axis."""

    grid: Grid
    rank: int
    coordinate: Coordinate
    tensor: AxisGroup
    data: AxisGroup
    pipe: AxisGroup


def init_distributed(
    backend: str,
    timeout: timedelta,
    *,
    init_method: str = "env://",
    rank: int | None = None,
    world_size: int | None = None,
    store: Store | None = None,
) -> None:
    """Join the world that torchrun (or `init_method`, `rank`, `world_size`) describes; CommError where it does not.

    `store`, of ranks that have met already, is used in place of `init_method`.
    """
    if rank is None or world_size is None:
        absent = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if absent:
            raise CommError(
                f"environment = {', '.join(absent)} not set (0 ranks joined, 1 or more needed); "
                "start with torchrun --nproc-per-node N -m megatron_tlm train"
            )
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "nccl" in backend:
        _choose_device()
    meeting = {"init_method": init_method} if store is None else {"store": PrefixStore("world", store)}
    with ends_when_stuck(timeout, "the process group"):
        dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=world_size, **meeting)


def default_backend() -> str:
    """For who names none: what the devices of this process talk by."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def lone_store() -> Store:
    """For a world of one process."""
    return HashStore()


def _choose_device() -> None:
    """One GPU per process of a node, before NCCL takes GPU 0 for all of them."""
    local_rank, present = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= present:
        raise CommError(
            f"LOCAL_RANK = {local_rank} exceeds the last of {present} GPUs of this node; "
            f"start with --nproc-per-node {max(present, 1)} or with --distributed-backend gloo"
        )
    torch.cuda.set_device(local_rank)


def build_mesh(grid: Grid) -> Mesh:
    """Make every axis group of `grid`, in the same order on all ranks; CommError when the world has another size."""
    if grid.size == 1 and not dist.is_initialized():
        return single_mesh()
    if dist.get_world_size() != grid.size:
        raise CommError(
            f"world_size = {dist.get_world_size()} is not pipe {grid.pipe} x data {grid.data} x tensor {grid.tensor} "
            f"= {grid.size}; start {grid.size} processes or change the degrees"
        )
    rank = dist.get_rank()
    axes: dict[str, AxisGroup] = {}
    for axis in AXES:
        for ranks in grid.groups(axis):
            # new_group is collective over the whole world: every rank has to pass here for every group.
            group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
            if rank in ranks:
                axes[axis] = AxisGroup(ranks=tuple(ranks), rank=ranks.index(rank), group=group)
    return Mesh(grid=grid, rank=rank, coordinate=grid.coordinate(rank), **axes)


def single_mesh() -> Mesh:
    """The mesh of one process: all axes of size 1, no rendezvous."""
    grid, alone = Grid(), AxisGroup.single()
    return Mesh(grid=grid, rank=0, coordinate=grid.coordinate(0), tensor=alone, data=alone, pipe=alone)


@contextmanager
def new_groups_wait(timeout: timedelta) -> Iterator[None]:
    """Within: every process group that is made waits this long for a peer, whoever makes it.

    A group does not inherit the world's timeout, and DeepSpeed, which makes a dozen, lets nobody give it one.
    """
    made_by_torch = dist.new_group

    def new_group(*args: Any, **options: Any) -> Any:
        with ends_when_stuck(timeout, "a process group"):
            return made_by_torch(*args, **{"timeout": timeout, **options})

    dist.new_group = new_group
    try:
        yield
    finally:
        dist.new_group = made_by_torch


def barrier() -> None:
    """Wait for all ranks of the world, where there is one."""
    if dist.is_initialized():
        dist.barrier()


def shutdown() -> None:
    """Leave the world together: a rank that leaves alone makes its peers abort."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def all_reduce_max(values: Sequence[float], axis: AxisGroup | None = None) -> list[float]:
    """Elementwise maximum over an axis (default: the world), in float64, outside autograd."""
    return _all_reduce(values, axis, dist.ReduceOp.MAX)


def all_reduce_sum(values: Sequence[float], axis: AxisGroup | None = None) -> list[float]:
    """Elementwise sum over an axis (default: the world), in float64, outside autograd."""
    return _all_reduce(values, axis, dist.ReduceOp.SUM)


def _all_reduce(values: Sequence[float], axis: AxisGroup | None, operation: dist.ReduceOp.RedOpType) -> list[float]:
    if not dist.is_initialized() or (axis is not None and axis.size == 1):
        return list(values)
    group = None if axis is None else axis.connected()
    device = torch.device("cuda") if "nccl" in dist.get_backend(group) else torch.device("cpu")
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=operation, group=group)
    return [float(value) for value in tensor.tolist()]


def broadcast_object(value: T, source: int = 0) -> T:
    """Rank `source`'s value on every rank of the world; only our own processes are on the other end."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def gather_object(value: T) -> list[T]:
    """Every rank's value, in rank order, on every rank of the world."""
    if not dist.is_initialized():
        return [value]
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]
