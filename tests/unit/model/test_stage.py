import pytest
import torch

from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from tests.tiny_model import random_tokens, random_weights, set_weights, tiny_plan


def filled_stage(**sizes: int | bool) -> Stage:
    plan = tiny_plan(**sizes)  # type: ignore[arg-type]
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    return stage


@pytest.mark.parametrize("tied", [True, False])
def test_the_whole_model_has_every_parameter_once(tied: bool) -> None:
    plan = tiny_plan(tied=tied)
    stage = Stage(plan)
    assert list(stage.global_parameters()) == list(plan.parameter_specs)
    assert len(list(stage.parameters())) == len(plan.parameter_specs)


def test_a_tied_last_stage_holds_a_copy_under_the_embeddings_name() -> None:
    plan = tiny_plan(pipe=2)
    first, last = (Stage(plan, index) for index in range(2))
    shared = set(first.global_parameters()) & set(last.global_parameters())
    assert shared == {"embedding.weight"}
    assert first.global_parameters()["embedding.weight"] is not last.global_parameters()["embedding.weight"]


@pytest.mark.parametrize("query_groups", [8, 2, 1])
@pytest.mark.parametrize("prefill", [1, 5, 11])
def test_cached_logits_equal_uncached(prefill: int, query_groups: int) -> None:
    stage = filled_stage(query_groups=query_groups)
    tokens = random_tokens(batch=2, length=12)
    cache = stage.new_cache(batch=2, capacity=12)
    with torch.inference_mode():
        pieces = [stage(tokens[:, :prefill], cache, 0)]
        pieces += [stage(tokens[:, at : at + 1], cache, at) for at in range(prefill, 12)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), stage(tokens), rtol=1e-12, atol=1e-12)


def test_a_prompt_may_come_in_chunks() -> None:
    stage, tokens = filled_stage(), random_tokens(batch=1, length=12)
    cache = stage.new_cache(batch=1, capacity=12)
    with torch.inference_mode():
        pieces = [stage(tokens[:, at : at + 4], cache, at) for at in (0, 4, 8)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), stage(tokens), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(stage(tokens, last_only=True), stage(tokens)[:, -1:], rtol=1e-12, atol=1e-12)


def test_full_recomputation_keeps_block_inputs_only() -> None:
    from megatron_tlm.layers.residual import BlockOptions

    def kept_bytes(options: BlockOptions) -> int:
        plan = tiny_plan(num_layers=4)
        stage = Stage(plan, options=options)
        init_stage(stage, plan, seed=1)
        held: dict[int, int] = {}

        def keep(x: torch.Tensor) -> torch.Tensor:
            held[x.data_ptr()] = x.numel() * x.element_size()
            return x

        tensors = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: tensors.append(x) or keep(x), lambda x: x):
            stage(random_tokens(batch=4))
        return sum(held.values())

    assert kept_bytes(BlockOptions(recompute="full")) < 0.6 * kept_bytes(BlockOptions(recompute="selective"))
    assert kept_bytes(BlockOptions(recompute="selective")) < kept_bytes(BlockOptions())
