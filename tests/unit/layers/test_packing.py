"""Documents packed together are what they are alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from megatron_tlm.layers.packing import Packing, read_packing
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from tests.tiny_model import tiny_plan

EOD = 5


def megatrons(tokens: list[int]) -> tuple[list[int], list[list[bool]]]:
    """`_get_ltor_masks_and_position_ids` of Megatron's gpt_dataset.py, loop for loop."""
    size = len(tokens)
    mask = [[key <= query for key in range(size)] for query in range(size)]
    positions = list(range(size))
    previous = 0
    for end in (place for place, token in enumerate(tokens) if token == EOD):
        for query in range(end + 1, size):
            for key in range(end + 1):
                mask[query][key] = False
        shift = end + 1 - previous
        for place in range(end + 1, size):
            positions[place] -= shift
        previous = end + 1
    return positions, mask


@given(st.lists(st.lists(st.integers(3, 6), min_size=12, max_size=12), min_size=1, max_size=3))
def test_positions_and_masks_are_megatrons(rows: list[list[int]]) -> None:
    packing = read_packing(torch.tensor(rows), EOD, positions=True, attention=True)
    assert packing.positions_BS is not None
    assert packing.mask_B1SS is not None
    for row, tokens in enumerate(rows):
        positions, mask = megatrons(tokens)
        assert packing.positions_BS[row].tolist() == positions
        assert packing.mask_B1SS[row, 0].tolist() == mask


def test_what_is_not_asked_for_is_left_alone() -> None:
    tokens = torch.tensor([[1, EOD, 2]])
    assert read_packing(tokens, EOD, positions=False, attention=True).positions_BS is None
    assert read_packing(tokens, EOD, positions=True, attention=False).mask_B1SS is None


def stage_of(mixer: str, recompute: str | None) -> Stage:
    plan = tiny_plan(mixer=mixer, seq_length=16)
    stage = Stage(plan, dtype=torch.float64, options=BlockOptions(recompute=recompute))  # type: ignore[arg-type]
    init_stage(stage, plan, seed=1)
    return stage


@pytest.mark.parametrize("recompute", [None, "full", "selective"])
@pytest.mark.parametrize("mixer", ["attention", "gated_attention"])
@pytest.mark.parametrize("positions", [False, True])
def test_packed_documents_give_the_logits_and_gradients_of_each_alone(
    mixer: str, recompute: str | None, positions: bool
) -> None:
    stage = stage_of(mixer, recompute)
    documents = [torch.tensor([[9, 8, 7, EOD]]), torch.tensor([[3, EOD]]), torch.tensor([[1, 2, 1, 2, 1, 3]])]
    packed = torch.cat(documents, dim=1)

    def run(tokens: Tensor, packing: Packing | None) -> tuple[Tensor, list[Tensor]]:
        stage.zero_grad()
        logits = stage(tokens, packing=packing)
        logits.square().sum().backward()
        return logits.detach(), [parameter.grad.clone() for parameter in stage.parameters()]  # type: ignore[union-attr]

    packing = read_packing(packed, EOD, positions=positions, attention=True)
    together, gradient = run(packed, packing)
    alone = [run(document, None) for document in documents]
    torch.testing.assert_close(together, torch.cat([logits for logits, _ in alone], dim=1), rtol=1e-9, atol=1e-11)
    for whole, *parts in zip(gradient, *(gradients for _, gradients in alone), strict=True):
        torch.testing.assert_close(whole, torch.stack(parts).sum(dim=0), rtol=1e-8, atol=1e-9)
    unpacked, _ = run(packed, None)
    assert (unpacked[:, 4:] - together[:, 4:]).abs().max() > 1e-3
