"""Every architecture: the oracle = one process = tensor ranks; recomputed = kept; decoded = read at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.config.architecture import Mixer
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.mixers import BUILDERS
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.mixers import MIXERS
from tests import oracle
from tests.equivalence.units import assert_units_equal
from tests.tiny_model import VOCABULARY, assert_same, random_tokens, random_weights, set_weights, tiny_plan

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gated": {"mixer": "gated_attention"},
    "gated-headwise-normed": {"mixer": "gated_attention", "attention_gate": "headwise", "qk_norm": True},
    "hope": {"cms_levels": 3},
    "titans-lmm": {"mixer": "titans_lmm"},
    "titans-mag": {"mixer": "titans_mag", "attention_window": 4},
    "titans-mag-normed-short": {"mixer": "titans_mag", "qk_norm": True, "memory_persistent_tokens": 0},
}
each = pytest.mark.parametrize("name", ARCHITECTURES)


def plan_of(name: str, **layout: Any) -> Plan:
    return tiny_plan(vocab_divisible_by=64 // layout.get("tensor", 1), **ARCHITECTURES[name], **layout)


def test_every_mixer_can_be_asked_for_planned_and_built() -> None:
    assert set(Mixer.__args__) == set(MIXERS) == set(BUILDERS)


def loss_and_gradients(plan: Plan, length: int = 8, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    stage = Stage(plan, dtype=torch.float64, options=BlockOptions(**options))
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    window = random_tokens(length=length + 1)
    loss = cross_entropy(stage(window[:, :-1])[..., :VOCABULARY], window)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in stage.global_parameters().items() if p.grad is not None}


def cross_entropy(logits: Tensor, window: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


@each
def test_one_process_equals_the_oracle(name: str) -> None:
    plan = plan_of(name)
    loss, gradients = loss_and_gradients(plan)
    whole = {name: tensor.requires_grad_() for name, tensor in random_weights(plan).items()}
    window = random_tokens(length=9)
    expected = cross_entropy(oracle.logits(window[:, :-1], whole, plan.shape), window)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    rows = {name: gradients[name][: tensor.shape[0]] for name, tensor in whole.items()}
    assert_same(rows, {name: tensor.grad for name, tensor in whole.items()}, tolerance=1e-11)  # type: ignore[misc]


@each
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
def test_units_on_tensor_ranks_equal_one_process(degree: int, sequence_parallel: bool, name: str) -> None:
    assert_units_equal(plan_of(name), plan_of(name, tensor=degree, sequence_parallel=sequence_parallel), 1e-11)


@each
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputation_changes_no_bit(recompute: str, name: str) -> None:
    loss, gradients = loss_and_gradients(plan_of(name))
    again, recomputed = loss_and_gradients(plan_of(name), recompute=recompute)
    assert torch.equal(again, loss)
    assert_same(recomputed, gradients, tolerance=0.0)


@each
def test_cached_generation_equals_uncached(name: str) -> None:
    plan = plan_of(name)
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    tokens = [3, 1, 4, 1, 5]
    for _ in range(20):
        with torch.no_grad():
            tokens.append(int(stage(torch.tensor([tokens]))[0, -1, :VOCABULARY].argmax()))
    assert list(generate(stage, tokens[:5], max_new_tokens=20, eod_id=None)) == tokens[5:]
    assert len(set(tokens)) > 3


@each
@pytest.mark.parametrize("pieces", [(8,), (1,) * 8, (3, 1, 4), (2, 5, 1)])
def test_reading_piece_by_piece_equals_reading_at_once(pieces: tuple[int, ...], name: str) -> None:
    plan = plan_of(name)
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    tokens, position, logits = random_tokens(), 0, []
    with torch.no_grad():
        cache = stage.new_cache(batch=2, capacity=8)
        for length in pieces:
            logits.append(stage(tokens[:, position : position + length], cache, position))
            position += length
        torch.testing.assert_close(torch.cat(logits, dim=1), stage(tokens), rtol=1e-11, atol=1e-11)


@each
def test_a_token_changes_nothing_before_it_nor_another_sample(name: str) -> None:
    plan = plan_of(name)
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    tokens = random_tokens()
    for position in range(1, 8):
        changed = tokens.clone()
        changed[0, position] = (changed[0, position] + 1) % VOCABULARY
        with torch.no_grad():
            before, after = stage(tokens), stage(changed)
        assert torch.equal(before[:, :position], after[:, :position])
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0, position], after[0, position])
