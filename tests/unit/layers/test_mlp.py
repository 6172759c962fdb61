import torch
import torch.nn.functional as F

from megatron_tlm.layers.mlp import swiglu


def test_swiglu_gradient_is_autograds_own() -> None:
    gate = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    up = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(swiglu(gate, up), F.silu(gate) * up)
    assert torch.autograd.gradcheck(swiglu, (gate, up))


def test_swiglu_keeps_only_its_inputs() -> None:
    kept: list[int] = []
    gate, up = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        swiglu(gate, up)
    assert kept == [gate.data_ptr(), up.data_ptr()]
