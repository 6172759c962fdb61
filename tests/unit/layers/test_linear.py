import pytest
import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.embedding import VocabularyEmbedding, VocabularyOutput
from megatron_tlm.layers.linear import ColumnLinear, ReplicatedLinear, RowLinear
from megatron_tlm.layers.placement import Placement

THIRD_OF_FOUR = Placement(tensor=AxisGroup.pretend(4, 2), dtype=torch.bfloat16)


def test_each_rank_holds_its_share_and_marks_it() -> None:
    column, row = ColumnLinear(8, 12, THIRD_OF_FOUR), RowLinear(12, 8, THIRD_OF_FOUR)
    whole = ReplicatedLinear(8, 4, range(2, 4), THIRD_OF_FOUR)
    embedding, output = VocabularyEmbedding(20, 8, THIRD_OF_FOUR), VocabularyOutput(20, 8, THIRD_OF_FOUR)
    shapes = [tuple(module.weight.shape) for module in (column, row, whole, embedding, output)]
    assert shapes == [(3, 8), (8, 3), (4, 8), (5, 8), (5, 8)]
    assert embedding.first_row == 10
    marked = [hasattr(module.weight, "tensor_model_parallel") for module in (column, row, whole, embedding, output)]
    assert marked == [True, True, False, True, True]
    assert {module.weight.dtype for module in (column, row, whole, embedding, output)} == {torch.bfloat16}


def test_one_rank_alone_marks_nothing() -> None:
    assert not hasattr(ColumnLinear(8, 12, Placement()).weight, "tensor_model_parallel")


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PlanError, match="column linear's output size = 10 is not a multiple of the tensor degree 4"):
        ColumnLinear(8, 10, THIRD_OF_FOUR)
    with pytest.raises(PlanError, match="row linear's input size = 10 is not a multiple of the tensor degree 4"):
        RowLinear(10, 8, THIRD_OF_FOUR)
    for layer in (VocabularyEmbedding, VocabularyOutput):
        with pytest.raises(PlanError, match="padded vocabulary = 21 is not a multiple of the tensor degree 4"):
            layer(21, 8, THIRD_OF_FOUR)
