import torch
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.comm.rng import step_seed
from megatron_tlm.layers.dropout import residual_dropout
from megatron_tlm.layers.mlp import SwiGLU
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions

ONES = torch.ones(2, 50, 8)


def mask(rank: int, sequence_parallel: bool, data_rank: int = 0) -> Tensor:
    torch.manual_seed(step_seed(1, 7, data_rank, 0))
    return residual_dropout(ONES, 0.25, Placement(AxisGroup.pretend(2, rank), sequence_parallel)) == 0


def test_a_replicated_activation_has_one_mask_on_all_tensor_ranks() -> None:
    assert torch.equal(mask(0, False), mask(1, False))
    assert not torch.equal(mask(0, False), mask(0, False, data_rank=1))


def test_sequence_shards_have_independent_masks() -> None:
    assert not torch.equal(mask(0, True), mask(1, True))
    assert torch.equal(mask(1, True), mask(1, True))


def test_a_quarter_is_dropped_and_the_rest_scaled() -> None:
    torch.manual_seed(0)
    dropped = residual_dropout(torch.ones(10000), 0.25, Placement())
    assert 0.23 < dropped.eq(0).float().mean() < 0.27
    assert dropped[dropped > 0].unique().tolist() == [torch.tensor(1 / 0.75).item()]


def test_evaluation_drops_nothing() -> None:
    block = SwiGLU(8, 16, epsilon=1e-5, placement=Placement(), options=BlockOptions(hidden_dropout=0.5))
    torch.manual_seed(0)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    block.eval()
    assert torch.equal(block(ONES), block(ONES))
    block.train()
    assert not torch.equal(block(ONES), block(ONES))
