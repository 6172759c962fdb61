"""Each unit on 2 and 4 tensor ranks equals itself on one: outputs, input gradients, weight gradients, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from tests.equivalence.units import assert_units_equal
from tests.ranks import run_ranks
from tests.tiny_model import VOCABULARY
from tests.tiny_model import tiny_plan as plan_of


@pytest.mark.parametrize("query_groups", [8, 2, 1])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
def test_units_on_tensor_ranks_equal_one_process(degree: int, sequence_parallel: bool, query_groups: int) -> None:
    sizes = {"query_groups": query_groups, "tied": query_groups != 2}
    single = plan_of(vocab_divisible_by=64, **sizes)
    assert_units_equal(single, plan_of(tensor=degree, sequence_parallel=sequence_parallel, **sizes))


def losses_on_rank(rank: int, logits: Tensor, labels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    degree = torch.distributed.get_world_size()
    tensor = AxisGroup(tuple(range(degree)), rank, torch.distributed.group.WORLD)
    local = logits.chunk(degree, dim=-1)[rank].to(dtype).clone().requires_grad_()
    before = local.detach().clone()
    loss = vocab_parallel_cross_entropy(local, labels, tensor, VOCABULARY)
    loss.backward(torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).view_as(loss))
    assert torch.equal(local, before), "the logits were changed in place"
    assert local.grad is not None
    return loss.detach(), local.grad


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize(("degree", "padded"), [(1, 53), (1, 64), (2, 54), (2, 128), (4, 56), (4, 64), (4, 128)])
def test_cross_entropy_equals_torch_on_unpadded_logits(
    degree: int, padded: int, dtype: torch.dtype, tolerance: float
) -> None:
    # 128 columns on 4 ranks: ranks 2 and 3 hold nothing but padding. Padding is large: it must not be looked at.
    logits = torch.randn(2, 5, padded, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 5
    logits[..., VOCABULARY:] = 1e4
    labels = torch.tensor([[0, 52, 13, 14, 26], [27, 31, 32, 51, 40]])
    results = run_ranks(degree, losses_on_rank, logits, labels, dtype)

    true = logits[..., :VOCABULARY].to(dtype).double().requires_grad_()
    expected = F.cross_entropy(true.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    expected.backward(torch.linspace(0.5, 2.0, expected.numel(), dtype=torch.float64).view_as(expected))
    grad = torch.cat([piece for _, piece in results], dim=-1)
    for loss, piece in results:
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert piece.dtype == dtype
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6 if dtype != torch.float64 else 1e-13, atol=1e-6)
    torch.testing.assert_close(grad[..., :VOCABULARY].double(), true.grad, rtol=tolerance, atol=tolerance)
    assert not grad[..., VOCABULARY:].any()
