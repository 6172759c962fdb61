"""Whole models: the oracle = one process = tensor ranks = stages in a row; tied = untied; recomputed = kept."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup, build_mesh
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from tests import oracle
from tests.ranks import run_ranks
from tests.tiny_model import (
    SEQUENCE,
    VOCABULARY,
    assemble,
    assert_same,
    random_tokens,
    random_weights,
    set_weights,
    tiny_plan,
)

Outcome = tuple[Tensor, dict[str, Tensor]]
BF16 = torch.bfloat16


def train_once(plan: Plan, tensor: AxisGroup | None = None, **options: Any) -> Outcome:
    """Loss and gradients by global name of one micro-batch, in float64, dropout seeded."""
    stage = Stage(plan, tensor=tensor, dtype=torch.float64, options=BlockOptions(**options))
    set_weights(stage.global_parameters(), random_weights(plan), plan, stage.tensor.rank)
    window = random_tokens(length=SEQUENCE + 1)
    torch.manual_seed(11)
    loss = vocab_parallel_cross_entropy(stage(window[:, :-1]), window[:, 1:], stage.tensor, VOCABULARY).mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in stage.global_parameters().items() if p.grad is not None}


def train_on_rank(rank: int, plan: Plan, options: dict[str, Any]) -> Outcome:
    return train_once(plan, build_mesh(plan.grid).tensor, **options)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("query_groups", [8, 2, 1])
def test_one_process_equals_the_oracle(query_groups: int, tied: bool) -> None:
    plan = tiny_plan(query_groups=query_groups, tied=tied)
    loss, gradients = train_once(plan)
    whole = {name: tensor.requires_grad_() for name, tensor in random_weights(plan).items()}
    window = random_tokens(length=SEQUENCE + 1)
    logits = oracle.logits(window[:, :-1], whole, plan.shape)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-13, atol=0)
    assert_same(assemble([gradients], plan), {name: tensor.grad for name, tensor in whole.items()})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
def test_tensor_ranks_equal_one_process(degree: int, sequence_parallel: bool, tied: bool) -> None:
    single = tiny_plan(tied=tied)
    loss, gradients = train_once(single)
    plan = tiny_plan(tensor=degree, sequence_parallel=sequence_parallel, tied=tied)
    ranks = run_ranks(degree, train_on_rank, plan, {})
    for rank_loss, _ in ranks:
        torch.testing.assert_close(rank_loss, loss, rtol=1e-13, atol=0)
    assert_same(assemble([grads for _, grads in ranks], plan), assemble([gradients], single))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_in_a_row_equal_the_whole(num_stages: int, tied: bool) -> None:
    whole = tiny_plan(tied=tied)
    _, expected = train_once(whole)
    plan = tiny_plan(pipe=num_stages, tied=tied)
    stages = [Stage(plan, index, dtype=torch.float64) for index in range(num_stages)]
    for stage in stages:
        set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    window = random_tokens(length=SEQUENCE + 1)
    h = window[:, :-1]
    for stage in stages:
        h = stage(h)
    vocab_parallel_cross_entropy(h, window[:, 1:], AxisGroup.single(), VOCABULARY).mean().backward()
    gradients: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.global_parameters().items():
            assert parameter.grad is not None
            # The last stage's copy of a tied weight: the trainer sums the gradients of the two.
            gradients[name] = gradients[name] + parameter.grad if name in gradients else parameter.grad
    assert_same(gradients, expected)


def test_tied_equals_untied_with_copied_weights() -> None:
    _, tied = train_once(tiny_plan(tied=True))
    plan = tiny_plan(tied=False)
    stage = Stage(plan, dtype=torch.float64)
    weights = random_weights(tiny_plan(tied=True))
    set_weights(stage.global_parameters(), weights | {"head.output.weight": weights["embedding.weight"]}, plan, 0)
    window = random_tokens(length=SEQUENCE + 1)
    vocab_parallel_cross_entropy(stage(window[:, :-1]), window[:, 1:], stage.tensor, VOCABULARY).mean().backward()
    untied = {name: parameter.grad for name, parameter in stage.global_parameters().items()}
    output_grad, embedding_grad = untied.pop("head.output.weight"), untied["embedding.weight"]
    assert output_grad is not None
    assert embedding_grad is not None
    assert_same({**untied, "embedding.weight": embedding_grad + output_grad}, tied)  # type: ignore[dict-item]


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputation_changes_no_bit(dropout: float, recompute: str) -> None:
    drops = {"hidden_dropout": dropout, "attention_dropout": dropout}
    loss, gradients = train_once(tiny_plan(), **drops)
    again, recomputed = train_once(tiny_plan(), recompute=recompute, **drops)
    assert torch.equal(again, loss)
    assert_same(recomputed, gradients, tolerance=0.0)


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_recomputation_on_tensor_ranks_changes_no_bit(sequence_parallel: bool, recompute: str) -> None:
    plan = tiny_plan(tensor=2, sequence_parallel=sequence_parallel)
    drops = {"hidden_dropout": 0.2, "attention_dropout": 0.2}
    kept = run_ranks(2, train_on_rank, plan, drops)
    recomputed = run_ranks(2, train_on_rank, plan, drops | {"recompute": recompute})
    assert torch.equal(kept[0][0], kept[1][0]), "tensor ranks disagree on the loss under dropout"
    for (loss, gradients), (again, other) in zip(kept, recomputed, strict=True):
        assert torch.equal(again, loss)
        assert_same(other, gradients, tolerance=0.0)
    assemble([gradients for _, gradients in kept], plan)  # replicated gradients are equal on both ranks


def initial_weights(rank: int, plan: Plan) -> dict[str, Tensor]:
    mesh = build_mesh(plan.grid)
    stage = Stage(plan, mesh.coordinate.pipe, tensor=mesh.tensor)
    init_stage(stage, plan, seed=5)
    return {name: parameter.detach() for name, parameter in stage.global_parameters().items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("tensor", "pipe"), [(4, 1), (1, 2), (2, 2)])
def test_initial_weights_do_not_depend_on_the_layout(tensor: int, pipe: int, tied: bool) -> None:
    alone = initial_weights(0, tiny_plan(tied=tied))
    plan = tiny_plan(tensor=tensor, pipe=pipe, tied=tied)
    ranks = run_ranks(tensor * pipe, initial_weights, plan)
    seen: set[str] = set()
    for stage in range(pipe):
        whole = assemble(ranks[stage * tensor : (stage + 1) * tensor], plan)
        assert_same(whole, {name: alone[name][: spec_rows(plan, name)] for name in whole}, tolerance=0.0)
        seen |= set(whole)
    assert seen == set(alone)


def spec_rows(plan: Plan, name: str) -> int:
    return plan.parameter_specs[name].shape[0]


def test_bfloat16_stays_near_float32() -> None:
    plan = tiny_plan(tensor=1)
    logits = {}
    for dtype in (torch.float32, BF16):
        stage = Stage(plan, dtype=dtype)
        init_stage(stage, plan, seed=5, std=0.1)
        assert {parameter.dtype for parameter in stage.parameters()} == {dtype}
        logits[dtype] = stage(random_tokens())
        assert logits[dtype].dtype == dtype
    difference = (logits[BF16].float() - logits[torch.float32]).abs().max() / logits[torch.float32].abs().max()
    assert difference < 0.03


def test_logits_equal_hugging_faces_llama() -> None:
    transformers = pytest.importorskip("transformers")
    plan = tiny_plan(schedule="uniform", tied=False, num_layers=3, vocab_divisible_by=64)
    shape, weights = plan.shape, random_weights(plan)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.widths[0],
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_query_groups,
        head_dim=shape.kv_channels,
        rms_norm_eps=shape.norm_epsilon,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict({hugging_face_name(name): tensor.float() for name, tensor in weights.items()}, strict=True)
    stage = Stage(plan)
    set_weights(stage.global_parameters(), weights, plan, 0)
    tokens = random_tokens(length=48)
    with torch.no_grad():
        torch.testing.assert_close(stage(tokens)[..., :VOCABULARY], model(tokens).logits, rtol=1e-5, atol=2e-5)


def hugging_face_name(name: str) -> str:
    if name in ("embedding.weight", "head.norm.weight", "head.output.weight"):
        return {"embedding": "model.embed_tokens", "head.norm": "model.norm", "head.output": "lm_head"}[
            name.removesuffix(".weight")
        ] + ".weight"
    _, layer, kind, local, _ = name.split(".")
    norm = {"mixer": "input_layernorm", "mlp": "post_attention_layernorm"}[kind]
    block = {"mixer": "self_attn", "mlp": "mlp"}[kind]
    return f"model.layers.{layer}.{norm if local == 'norm' else f'{block}.{local}_proj'}.weight"
