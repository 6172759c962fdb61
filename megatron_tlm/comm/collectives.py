"""Differentiable collectives in pairs: each one's backward is the other's forward (Megatron-LM, arXiv:1909.08053 and
2205.05198). Never in place: autograd may still need the tensor we were given.

    copy_to                  identity        | all-reduce        replicated activation -> sharded weights
    reduce_from              all-reduce      | identity          partial sums -> replicated activation
    gather_sequence          all-gather      | reduce-scatter    sequence shard -> whole, before sharded weights
    reduce_scatter_sequence  reduce-scatter  | all-gather        partial sums -> sequence shard
    scatter_sequence         split           | all-gather        replicated activation -> sequence shard

Shapes: B microbatch, S sequence, s = S / group size, D model width. The sequence is dim 1.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import CommError

# torch 2.13 renamed the one-tensor collectives and warns at every call of the old names; torch 2.6 has only those.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def sum_over(x: Tensor, axis: AxisGroup) -> Tensor:
    """The elementwise sum over the axis; outside autograd. Any shape."""
    return _all_reduce(x, axis, dist.ReduceOp.SUM)


def max_over(x: Tensor, axis: AxisGroup) -> Tensor:
    """The elementwise maximum over the axis; outside autograd. Any shape."""
    return _all_reduce(x, axis, dist.ReduceOp.MAX)


def _all_reduce(x: Tensor, axis: AxisGroup, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if axis.size == 1:
        return x
    result = x.detach().clone(memory_format=torch.contiguous_format)
    with axis.waiting:
        dist.all_reduce(result, op=operation, group=axis.connected())
    return result


def start_gather(x_BsD: Tensor, axis: AxisGroup) -> Callable[[], Tensor]:
    """Begin to gather [B, s, D]; calling what is returned waits for [B, S, D]. Outside autograd."""
    batch, length, *rest = x_BsD.shape
    gathered = x_BsD.new_empty((axis.size * batch, length, *rest))
    work = _all_gather_single(gathered, x_BsD.contiguous(), group=axis.connected(), async_op=True)

    def finish() -> Tensor:
        with axis.waiting:
            work.wait()
        # Ranks come first in the buffer; with one sample a microbatch they lie in sequence order already, uncopied.
        by_rank = gathered.view(axis.size, batch, length, *rest)
        return by_rank.transpose(0, 1).reshape(batch, axis.size * length, *rest)

    return finish


def _all_gather(x_BsD: Tensor, axis: AxisGroup) -> Tensor:
    return start_gather(x_BsD, axis)()


def _reduce_scatter(x_BSD: Tensor, axis: AxisGroup) -> Tensor:
    batch, length, *rest = x_BSD.shape
    share = _share(length, axis)
    by_rank = x_BSD.reshape(batch, axis.size, share, *rest).transpose(0, 1).contiguous()
    result = x_BSD.new_empty((batch, share, *rest))
    with axis.waiting:
        _reduce_scatter_single(result, by_rank.view(axis.size * batch, share, *rest), group=axis.connected())
    return result


def _split(x_BSD: Tensor, axis: AxisGroup) -> Tensor:
    share = _share(x_BSD.shape[1], axis)
    return x_BSD.narrow(1, axis.rank * share, share).contiguous()


def _share(length: int, axis: AxisGroup) -> int:
    if length % axis.size:
        raise CommError(
            f"sequence length = {length} is not a multiple of the tensor degree {axis.size}; "
            "change seq_length or switch sequence parallelism off"
        )
    return length // axis.size


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over(grad, ctx.axis), None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        return sum_over(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        ctx.axis = axis
        return _all_gather(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grad, ctx.axis), None


class _ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        ctx.axis = axis
        return _reduce_scatter(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_gather(grad, ctx.axis), None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: AxisGroup) -> Tensor:
        ctx.axis = axis
        return _split(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_gather(grad, ctx.axis), None


def _apply(function: type[torch.autograd.Function], x: Tensor, axis: AxisGroup) -> Tensor:
    if axis.size == 1:
        return x
    result: Tensor = function.apply(x, axis)  # type: ignore[no-untyped-call]
    return result


def copy_to(x: Tensor, axis: AxisGroup) -> Tensor:
    """The same tensor; its gradient is summed over the axis. Any shape."""
    return _apply(_CopyTo, x, axis)


def reduce_from(x: Tensor, axis: AxisGroup) -> Tensor:
    """The sum over the axis; the gradient passes unchanged. Any shape."""
    return _apply(_ReduceFrom, x, axis)


def gather_sequence(x_BsD: Tensor, axis: AxisGroup) -> Tensor:
    """[B, s, D] -> [B, S, D]; the gradient, partial on each rank, is summed and scattered."""
    return _apply(_GatherSequence, x_BsD, axis)


def reduce_scatter_sequence(x_BSD: Tensor, axis: AxisGroup) -> Tensor:
    """[B, S, D] partial sums -> [B, s, D]; CommError where the axis does not divide S."""
    return _apply(_ReduceScatterSequence, x_BSD, axis)


def scatter_sequence(x_BSD: Tensor, axis: AxisGroup) -> Tensor:
    """[B, S, D], equal on all ranks -> this rank's [B, s, D]; CommError where the axis does not divide S."""
    return _apply(_ScatterSequence, x_BSD, axis)
