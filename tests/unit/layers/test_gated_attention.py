"""Gated attention is the specification's loop, and Hugging Face's where that is the same function."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests import oracle
from tests.mixers import branch_and_gradients, build, local_weights, random_input, through_module
from tests.tiny_model import assert_same, tiny_plan

GATED = {"mixer": "gated_attention"}


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("query_groups", [8, 2])
@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_outputs_and_all_gradients_equal_the_loop(gate: str, query_groups: int, qk_norm: bool) -> None:
    plan = tiny_plan(query_groups=query_groups, attention_gate=gate, qk_norm=qk_norm, **GATED)
    weights, x = local_weights(plan), random_input(plan, length=5)
    norm = weights.pop("norm.weight")
    fast, gradients = branch_and_gradients(
        lambda x, own: through_module(plan)(x, {**own, "norm.weight": norm}), x, weights
    )
    slow, expected = branch_and_gradients(lambda x, own: oracle.gated_attention(x, own, plan.shape), x, weights)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    assert_same(gradients, expected)


def test_a_zero_gate_halves_the_output_projection() -> None:
    gated, plain = tiny_plan(**GATED), tiny_plan()
    weights, x = local_weights(gated), random_input(gated)
    weights["gate.weight"] = torch.zeros_like(weights["gate.weight"])
    halved = {name: tensor for name, tensor in weights.items() if name != "gate.weight"}
    halved["o.weight"] = halved["o.weight"] / 2
    torch.testing.assert_close(build(gated, weights).branch(x), build(plain, halved).branch(x), rtol=1e-13, atol=1e-13)


def test_headwise_is_elementwise_with_repeated_rows() -> None:
    headwise, elementwise = (tiny_plan(attention_gate=gate, **GATED) for gate in ("headwise", "elementwise"))
    weights, x = local_weights(headwise), random_input(headwise)
    repeated = weights | {"gate.weight": weights["gate.weight"].repeat_interleave(4, dim=0)}
    torch.testing.assert_close(
        build(headwise, weights).branch(x), build(elementwise, repeated).branch(x), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_a_token_changes_nothing_before_it(gate: str) -> None:
    plan = tiny_plan(attention_gate=gate, **GATED)
    module, x = build(plan, local_weights(plan)), random_input(plan)
    changed = x.clone()
    changed[:, 5] += 1
    before, after = module.branch(x), module.branch(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any()


def test_the_sigmoid_is_taken_in_float32() -> None:
    plan = tiny_plan(**GATED)
    module = build(plan, local_weights(plan), torch.bfloat16)
    y = torch.ones(1, 2, 8, 4, dtype=torch.bfloat16)
    x = random_input(plan, 1, 2).bfloat16()
    logits = (x @ module.gate.weight.T).float()  # type: ignore[operator,union-attr]
    gated = module.gated(y, x, None)  # type: ignore[operator]
    assert torch.equal(gated, torch.sigmoid(logits).view(1, 2, 8, 4).bfloat16())


def test_it_equals_hugging_faces_qwen3_next() -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

    plan = tiny_plan(qk_norm=True, **GATED)
    shape, weights, x = plan.shape, local_weights(plan), random_input(plan).float()
    config = Qwen3NextConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_query_groups,
        head_dim=shape.kv_channels,
        rms_norm_eps=shape.norm_epsilon,
        partial_rotary_factor=1.0,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rotary_base, "partial_rotary_factor": 1.0},
        attn_implementation="eager",
    )
    theirs = Qwen3NextAttention(config, layer_idx=0).eval()
    theirs.load_state_dict({name: tensor.float() for name, tensor in hugging_face(weights).items()}, strict=True)
    positions = Qwen3NextRotaryEmbedding(config)(x, torch.arange(x.shape[1])[None])
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected, _ = theirs(x, positions, mask)
        found = build(plan, weights, torch.float32).branch(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def hugging_face(weights: dict[str, Tensor]) -> dict[str, Any]:
    """Their query projection holds, head by head, the query's rows and then the gate's; norms add 1 to weights."""
    by_head = [weights[name].view(8, 4, -1) for name in ("q.weight", "gate.weight")]
    named = {"q_proj.weight": torch.cat(by_head, dim=1).flatten(0, 1)}
    named |= {f"{name}_proj.weight": weights[f"{name}.weight"] for name in "kvo"}
    return named | {f"{name}_norm.weight": weights[f"{name}_norm.weight"] - 1 for name in "qk"}
