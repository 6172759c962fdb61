import sys
from types import ModuleType

import pytest
import torch

from megatron_tlm.layers.norm import RMSNorm, apex_rms_norm, rms_norm
from megatron_tlm.layers.placement import Placement
from tests import oracle


def test_norm_is_the_papers_formula() -> None:
    x, weight = torch.randn(3, 5, 16, dtype=torch.float64), torch.rand(16, dtype=torch.float64)
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), oracle.rms_norm(x, weight, 1e-3), rtol=1e-14, atol=1e-14)


def test_bfloat16_is_normalised_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 512, generator=generator).bfloat16()
    weight = (torch.rand(512, generator=generator) + 0.5).bfloat16()
    exact = oracle.rms_norm(x.double(), weight.double(), 1e-5)
    result = rms_norm(x, weight, 1e-5)
    assert result.dtype == torch.bfloat16
    # One rounding at the end is 2^-9; a square, a mean or a product in bfloat16 would show as more.
    assert ((result.double() - exact).abs() / exact.abs()).max() < 2**-8 * 1.001


def test_gradients_are_those_of_finite_differences() -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-3), (x, weight))


def test_bfloat16_gradients_are_computed_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 512, generator=generator).bfloat16().requires_grad_()
    weight = torch.rand(512, generator=generator).bfloat16().requires_grad_()
    grad = torch.randn(64, 512, generator=generator).bfloat16()
    rms_norm(x, weight, 1e-5).backward(grad)
    exact_x, exact_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    oracle.rms_norm(exact_x, exact_weight, 1e-5).backward(grad.double())
    for rounded, exact in ((x.grad, exact_x.grad), (weight.grad, exact_weight.grad)):
        assert rounded is not None
        assert exact is not None
        torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-5)


def test_only_the_input_and_one_number_a_row_are_kept() -> None:
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        rms_norm(torch.randn(4, 16, requires_grad=True), torch.ones(16, requires_grad=True), 1e-5)
    assert sorted(kept) == [4, 16, 64]


def test_module_has_one_weight_of_its_dtype() -> None:
    norm = RMSNorm(8, 1e-5, Placement(dtype=torch.bfloat16))
    assert [(name, p.shape, p.dtype) for name, p in norm.named_parameters()] == [("weight", (8,), torch.bfloat16)]


@pytest.fixture
def fresh_detection() -> None:
    apex_rms_norm.cache_clear()


@pytest.mark.usefixtures("fresh_detection")
def test_the_other_package_called_apex_is_not_taken_for_nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apex", ModuleType("apex"))
    assert apex_rms_norm() is None
    apex_rms_norm.cache_clear()


@pytest.mark.usefixtures("fresh_detection")
def test_nvidias_apex_without_its_compiled_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    install_apex(monkeypatch)
    monkeypatch.delitem(sys.modules, "fused_layer_norm_cuda")
    assert apex_rms_norm() is None
    apex_rms_norm.cache_clear()


@pytest.mark.usefixtures("fresh_detection")
def test_nvidias_apex_is_found_but_not_used_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install_apex(monkeypatch)
    assert apex_rms_norm() is kernel
    assert rms_norm(torch.ones(2, 4), torch.ones(4), 0.0).tolist() == [[1.0] * 4] * 2
    apex_rms_norm.cache_clear()


def install_apex(monkeypatch: pytest.MonkeyPatch) -> object:
    def kernel(*arguments: object) -> None:
        raise AssertionError("apex's kernel was called on a CPU tensor")

    normalization, functions = ModuleType("apex.normalization"), ModuleType("apex.normalization.fused_layer_norm")
    normalization.FusedRMSNorm = object  # type: ignore[attr-defined]
    functions.fused_rms_norm_affine = kernel  # type: ignore[attr-defined]
    for module in (ModuleType("apex"), normalization, functions, ModuleType("fused_layer_norm_cuda")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return kernel
