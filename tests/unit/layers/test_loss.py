import pytest
import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import DataError
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy

ALONE = AxisGroup.single()


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4]]], requires_grad=True)
    loss = vocab_parallel_cross_entropy(logits, torch.tensor([[1]]), ALONE, 3)
    loss.sum().backward()
    assert loss.item() == 1e4
    assert logits.grad is not None
    assert logits.grad.tolist() == [[[1.0, -1.0, 0.0]]]


def test_gradient_is_that_of_finite_differences() -> None:
    logits = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 6, 3], [2, 2, 5]])
    grad = torch.randn(2, 3, dtype=torch.float64)
    vocab_parallel_cross_entropy(logits, labels, ALONE, 7).backward(grad)

    def weighted(z: torch.Tensor) -> torch.Tensor:
        return (vocab_parallel_cross_entropy(z, labels, ALONE, 7) * grad).sum()

    for index in ((0, 0, 0), (0, 1, 6), (1, 2, 3), (1, 0, 7)):
        step = torch.zeros_like(logits)
        step[index] = 1e-6
        slope = (weighted(logits.detach() + step) - weighted(logits.detach() - step)) / 2e-6
        assert logits.grad is not None
        torch.testing.assert_close(logits.grad[index], slope, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("label", [-1, 7, 8])
def test_a_label_outside_the_vocabulary_is_refused(label: int) -> None:
    with pytest.raises(DataError, match=r"labels = .*leave the vocabulary of 7 ids"):
        vocab_parallel_cross_entropy(torch.zeros(1, 2, 8), torch.tensor([[0, label]]), ALONE, 7)


def test_a_second_backward_is_an_error_and_not_a_wrong_gradient() -> None:
    logits = torch.randn(1, 2, 8, requires_grad=True)
    loss = vocab_parallel_cross_entropy(logits, torch.tensor([[0, 1]]), ALONE, 8).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_it_works_without_gradients() -> None:
    with torch.no_grad():
        assert (
            vocab_parallel_cross_entropy(torch.zeros(1, 2, 8), torch.tensor([[0, 1]]), ALONE, 4)
            .exp()
            .allclose(torch.tensor(4.0))
        )
