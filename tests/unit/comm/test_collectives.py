import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatron_tlm.comm.collectives import (
    copy_to,
    gather_sequence,
    max_over,
    reduce_from,
    reduce_scatter_sequence,
    scatter_sequence,
    sum_over,
)
from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import CommError
from tests.ranks import run_ranks

Collective = Callable[[Tensor, AxisGroup], Tensor]
BATCH, WIDTH, SHARE = 2, 3, 2


def whole_axis(rank: int) -> AxisGroup:
    size = torch.distributed.get_world_size()
    return AxisGroup(tuple(range(size)), rank, torch.distributed.group.WORLD)


def random_on(rank: int, salt: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * salt + rank)
    return torch.randn(BATCH, length, WIDTH, generator=generator, dtype=torch.float64)


# collective -> (length of the input, length of the output) for n ranks, whether the input is the same on all ranks,
# the output on rank r of the ranks' inputs, the input gradient on rank r of the ranks' output gradients
def summed(pieces: list[Tensor]) -> Tensor:
    return torch.stack(pieces).sum(0)


def part(x: Tensor, rank: int) -> Tensor:
    return x[:, rank * SHARE : (rank + 1) * SHARE]


Oracle = Callable[[list[Tensor], int], Tensor]
CASES: dict[str, tuple[Collective, bool, bool, Oracle, Oracle]] = {
    "copy_to": (copy_to, False, False, lambda xs, r: xs[r], lambda gs, r: summed(gs)),
    "reduce_from": (reduce_from, False, False, lambda xs, r: summed(xs), lambda gs, r: gs[r]),
    "gather": (gather_sequence, False, True, lambda xs, r: torch.cat(xs, 1), lambda gs, r: part(summed(gs), r)),
    "reduce_scatter": (
        reduce_scatter_sequence,
        True,
        False,
        lambda xs, r: part(summed(xs), r),
        lambda gs, r: torch.cat(gs, 1),
    ),
    "scatter": (scatter_sequence, True, False, lambda xs, r: part(xs[r], r), lambda gs, r: torch.cat(gs, 1)),
}


def run_collective(rank: int, name: str) -> tuple[Tensor, Tensor, bool]:
    collective, whole_in, whole_out, *_ = CASES[name]
    axis = whole_axis(rank)
    x = random_on(rank, 1, SHARE * (axis.size if whole_in else 1)).requires_grad_()
    grad = random_on(rank, 2, SHARE * (axis.size if whole_out else 1))
    kept = x.detach().clone(), grad.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = collective(x, axis)
        y.backward(grad)
    unharmed = torch.equal(x.detach(), kept[0]) and torch.equal(grad, kept[1])
    assert x.grad is not None
    return y.detach(), x.grad, unharmed


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_forward_and_backward_are_what_the_table_says(size: int, name: str) -> None:
    _, whole_in, whole_out, forward, backward = CASES[name]
    inputs = [random_on(rank, 1, SHARE * (size if whole_in else 1)) for rank in range(size)]
    grads = [random_on(rank, 2, SHARE * (size if whole_out else 1)) for rank in range(size)]
    for rank, (y, x_grad, unharmed) in enumerate(run_ranks(size, run_collective, name)):
        assert unharmed, "a tensor that was handed in has been changed"
        torch.testing.assert_close(y, forward(inputs, rank), rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(x_grad, backward(grads, rank), rtol=1e-14, atol=1e-14)


def reduce_outside_autograd(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.tensor([float(rank), -float(rank)])
    return sum_over(x, whole_axis(rank)), max_over(x, whole_axis(rank)), x


def test_plain_reductions_leave_their_input() -> None:
    for rank, (total, largest, x) in enumerate(run_ranks(2, reduce_outside_autograd)):
        assert total.tolist() == [1.0, -1.0]
        assert largest.tolist() == [1.0, 0.0]
        assert x.tolist() == [float(rank), -float(rank)]


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(CommError, match="sequence length = 5 is not a multiple of the tensor degree 2"):
        scatter_sequence(torch.zeros(1, 5, 2), AxisGroup.pretend(2, 0))
    with pytest.raises(CommError, match="sequence length = 5"):
        reduce_scatter_sequence(torch.zeros(1, 5, 2), AxisGroup.pretend(2, 0))
