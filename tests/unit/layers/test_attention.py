import math

import pytest
import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.attention import Attention, attend, share_heads
from megatron_tlm.layers.cache import KeyValueCache
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("num_heads", "num_groups", "degree"),
    [(8, 8, 4), (8, 4, 4), (8, 2, 4), (8, 1, 4), (6, 3, 3), (12, 2, 6), (4, 2, 1)],
)
def test_every_query_head_finds_its_group_on_its_own_rank(num_heads: int, num_groups: int, degree: int) -> None:
    seen = []
    for rank in range(degree):
        share = share_heads(num_heads, num_groups, degree, rank)
        queries = range(rank * share.num_queries, (rank + 1) * share.num_queries)
        # grouped attention reads local group i // (n / k)
        readers = share.num_queries // len(share.groups)
        for local, head in enumerate(queries):
            assert share.groups[local // readers] == head // (num_heads // num_groups)
        assert share.replicated == (degree > num_groups)
        seen += list(queries)
    assert seen == list(range(num_heads))


@pytest.mark.parametrize(("num_groups", "degree"), [(3, 2), (4, 6), (5, 1)])
def test_heads_that_cannot_be_shared_out_are_refused(num_groups: int, degree: int) -> None:
    with pytest.raises(PlanError, match=f"num_query_groups = {num_groups} divides neither into 12 heads nor over"):
        share_heads(12, num_groups, degree, 0)
    with pytest.raises(PlanError, match="num_attention_heads = 12 is not a multiple of the tensor degree 5"):
        share_heads(12, 12, 5, 0)


@pytest.mark.parametrize(("length", "seen"), [(6, 6), (1, 6), (4, 6), (1, 1)])
def test_a_query_sees_the_keys_up_to_its_own(length: int, seen: int) -> None:
    q = torch.randn(2, 4, length, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, seen, 8, dtype=torch.float64) for _ in range(2))
    result = attend(q, k, v)
    for head in range(4):
        scores = q[:, head] @ k[:, head // 2].transpose(1, 2) / math.sqrt(8)
        for row in range(length):
            scores[:, row, seen - length + row + 1 :] = -torch.inf
        torch.testing.assert_close(result[:, head], scores.softmax(-1) @ v[:, head // 2], rtol=1e-12, atol=1e-12)


def drop_attention(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    placement, options = Placement(AxisGroup.pretend(2, rank)), BlockOptions(attention_dropout=0.5)
    block = Attention(8, 4, 2, 4, rotary_base=1e4, epsilon=1e-5, placement=placement, options=options)
    torch.manual_seed(1)
    ones = torch.ones(1, 1, 6, 4)
    return block._core(ones.expand(1, 2, 6, 4), ones, ones), torch.rand(3)


def test_tensor_ranks_drop_other_probabilities_and_stay_in_step() -> None:
    (mine, after), (other, after_other) = drop_attention(0), drop_attention(1)
    assert not torch.equal(mine, other)
    assert torch.equal(mine, drop_attention(0)[0])
    assert torch.equal(after, after_other)


def test_a_full_cache_is_refused() -> None:
    cache = KeyValueCache(1, 2, 4, 8, dtype=torch.float32, device=CPU)
    k = torch.ones(1, 2, 3, 8)
    keys, values = cache.write(k, k * 2, 0)
    assert keys.shape == (1, 2, 3, 8)
    assert values.eq(2).all()
    with pytest.raises(PlanError, match="cache position = 6 exceeds the capacity of 4 tokens"):
        cache.write(k, k, 3)
