"""The chunk form is the token-by-token recurrence with autograd inside; specification 4.10."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.layers import memory_recurrence
from megatron_tlm.layers.memory import segment_lengths
from megatron_tlm.layers.memory_recurrence import Gates, State, Weights, run_segment
from tests import memory_oracle

HEAD, INNER = 6, 10
NAMES = ("q", "k", "v", "step", "momentum", "forget", "first", "second", "scale", "shift")


def inputs(length: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Of one head and sequence; gates as logits."""
    generator = torch.Generator().manual_seed(seed)
    shapes = dict.fromkeys("qkv", (length, HEAD)) | dict.fromkeys(("step", "momentum", "forget"), (2, length))
    shapes |= {"first": (INNER, HEAD), "second": (HEAD, INNER), "scale": (HEAD,), "shift": (HEAD,)}
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    values["scale"] = 1 + 0.1 * values["scale"]
    return {name: values[name].to(dtype).requires_grad_() for name in NAMES}


def fast(x: dict[str, Tensor], chunk: int, max_step: float = 0.5, segment: int = 4) -> tuple[Tensor, list[Tensor]]:
    """Outputs and (W2, W1, S2, S1) at the end, segment by segment."""
    gates = Gates(
        (max_step * torch.sigmoid(x["step"]))[None],
        torch.nn.functional.logsigmoid(x["momentum"])[None],
        torch.nn.functional.logsigmoid(-x["forget"])[None],
    )
    states = [torch.stack((x[name], torch.zeros_like(x[name])))[None] for name in ("first", "second")]
    state, outputs, start = State(*states), [], 0
    for length in segment_lengths(x["q"].shape[0], chunk, 0, segment):
        part = slice(start, start + length)
        output, state = run_segment(
            *(x[name][None, part] for name in "qkv"),
            Gates(*(gate[..., part] for gate in gates)),
            state,
            *(x[name][None, None] for name in ("scale", "shift")),
            chunk,
        )
        outputs.append(output[0])
        start += length
    ends = [state.first_M2mH[0, 0], state.second_M2Hm[0, 0], state.first_M2mH[0, 1], state.second_M2Hm[0, 1]]
    return torch.cat(outputs), ends


def slow(x: dict[str, Tensor], chunk: int, max_step: float = 0.5) -> tuple[Tensor, list[Tensor]]:
    gates = (max_step * torch.sigmoid(x["step"]), torch.sigmoid(x["momentum"]), torch.sigmoid(x["forget"]))
    initial = (x["first"], x["second"])
    output, weights, momenta = memory_oracle.recurrence(
        x["q"], x["k"], x["v"], *gates, initial, x["scale"], x["shift"], chunk
    )
    return output, [*weights, *momenta]


@pytest.mark.parametrize(("length", "chunk"), [(11, 1), (12, 4), (13, 4), (3, 4), (20, 16), (37, 8)])
def test_outputs_states_and_all_gradients_equal_the_oracle(length: int, chunk: int) -> None:
    results = []
    for function in (fast, slow):
        x = inputs(length)
        output, ends = function(x, chunk)
        generator = torch.Generator().manual_seed(9)
        total = sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in (output, *ends))
        gradients = torch.autograd.grad(total, list(x.values()))  # type: ignore[arg-type]
        results.append([output, *ends, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11 * float(expected.abs().max()) + 1e-13)


def test_one_token_without_momentum_and_forgetting_is_a_step_of_sgd() -> None:
    x = {name: tensor.detach() for name, tensor in inputs(1).items()}
    x["momentum"], x["forget"] = torch.full((2, 1), -80.0).double(), torch.full((2, 1), -80.0).double()
    _, (first, second, *_) = fast(x, 1)
    weights = [x["first"].clone().requires_grad_(), x["second"].clone().requires_grad_()]
    out = memory_oracle.memory((weights[0], weights[1]), x["k"][0], x["scale"], x["shift"])
    (0.5 * (out - x["v"][0]).square().sum()).backward()
    rates = 0.5 * torch.sigmoid(x["step"][:, 0])
    for found, start, rate in zip((first, second), weights, rates, strict=True):
        assert start.grad is not None
        torch.testing.assert_close(found, start.detach() - rate * start.grad, rtol=1e-12, atol=1e-12)


def test_without_steps_the_memory_only_forgets() -> None:
    x = {name: tensor.detach() for name, tensor in inputs(9).items()}
    output, _ = fast(x, 4, max_step=0.0)
    kept = torch.cumprod(1 - torch.sigmoid(x["forget"]), dim=-1)
    for t in range(9):
        weights = (kept[0, t] * x["first"], kept[1, t] * x["second"])
        expected = memory_oracle.memory(weights, x["q"][t], x["scale"], x["shift"])
        torch.testing.assert_close(output[t], expected, rtol=1e-12, atol=1e-12)
    x["forget"] = torch.full_like(x["forget"], -80.0)
    output, (first, second, *_) = fast(x, 4, max_step=0.0)
    assert torch.equal(first, x["first"])
    assert torch.equal(second, x["second"])
    static = [memory_oracle.memory((first, second), q, x["scale"], x["shift"]) for q in x["q"]]
    torch.testing.assert_close(output, torch.stack(static), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("logit", [-30.0, 30.0])
@pytest.mark.parametrize("gate", ["step", "momentum", "forget"])
def test_extreme_gates_stay_finite_in_float32(gate: str, logit: float) -> None:
    for others in (0.0, -30.0, 30.0):
        x = inputs(64, dtype=torch.float32)
        for name in ("step", "momentum", "forget"):
            x[name] = torch.full((2, 64), logit if name == gate else others).requires_grad_()
        output, ends = fast(x, 16, max_step=0.01)
        gradients = torch.autograd.grad(output.sum() + sum(end.sum() for end in ends), list(x.values()))
        assert all(tensor.isfinite().all() for tensor in (output, *ends, *gradients))


def test_gradcheck() -> None:
    x = inputs(5)

    def outputs(*values: Tensor) -> Tensor:
        return fast(dict(zip(NAMES, values, strict=True)), 2)[0]

    assert torch.autograd.gradcheck(outputs, tuple(x.values()))


def test_a_chunk_may_be_continued_from_its_anchor() -> None:
    """Decoding: seven tokens in pieces, of which one ends inside a chunk, are seven tokens at once."""
    x = {name: tensor.detach() for name, tensor in inputs(7).items()}
    whole, _ = fast(x, 4)
    gates = Gates(
        (0.5 * torch.sigmoid(x["step"]))[None],
        torch.nn.functional.logsigmoid(x["momentum"])[None],
        torch.nn.functional.logsigmoid(-x["forget"])[None],
    )
    state = State(*(torch.stack((x[name], torch.zeros_like(x[name])))[None] for name in ("first", "second")))
    anchor, outputs = state.weights, []
    for t in range(7):
        anchor = state.weights if t % 4 == 0 else anchor
        part = slice(t, t + 1)
        output, state = run_segment(
            *(x[name][None, part] for name in "qkv"),
            Gates(*(gate[..., part] for gate in gates)),
            state,
            *(x[name][None, None] for name in ("scale", "shift")),
            4,
            Weights(*anchor),
        )
        outputs.append(output[0])
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("length", "phase", "lengths"),
    [(10, 0, [8, 2]), (10, 3, [1, 8, 1]), (2, 1, [2]), (3, 1, [3]), (20, 0, [8, 8, 4]), (1, 0, [1]), (4, 0, [4])],
)
def test_segments_end_where_chunks_do(length: int, phase: int, lengths: list[int]) -> None:
    assert segment_lengths(length, 4, phase, 2) == lengths


def test_flops_of_a_segment_are_the_plans() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    length, chunk = 32, 8
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fast(inputs(length), chunk)
    token = 22 * HEAD * INNER + 4 * chunk * (HEAD + INNER) + 4 * chunk * (chunk + 1)
    assert counter.get_total_flops() == length * token


def test_outer_gradients_stay_small_at_the_initial_values() -> None:
    """What the norm's epsilon and the unit-scale W_0 are for: with 1e-6 and small weights these reach thousands."""
    assert memory_recurrence.EPSILON == memory_oracle.EPSILON == 1e-2
    generator = torch.Generator().manual_seed(3)
    head, inner, length = 32, 128, 256
    q, k = (torch.nn.functional.normalize(torch.randn(1, length, head, generator=generator), dim=-1) for _ in range(2))
    k.requires_grad_()
    v = torch.randn(1, length, head, generator=generator)
    state = State(
        torch.stack((torch.randn(inner, head, generator=generator), torch.zeros(inner, head)))[None],
        torch.stack((torch.randn(head, inner, generator=generator) / math.sqrt(inner), torch.zeros(head, inner)))[None],
    )
    ones: Any = torch.ones(1, 2, length)
    gates = Gates(0.01 * ones, math.log(0.9) * ones, math.log(0.9) * ones)
    output, _ = run_segment(q, k, v, gates, state, torch.ones(1, 1, head), torch.zeros(1, 1, head), 16)
    (gradient,) = torch.autograd.grad(output.square().mean(), k)
    assert gradient.norm() < 1
