"""Documents packed together are what they are alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from megatron_tlm.layers import packing as packing_module
from megatron_tlm.layers.attention import attend, attend_spans
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


def whole_masks(packing: Packing, rows: int, size: int) -> Tensor:
    """What the spans let each query see, as one mask a row."""
    masks_BSS = torch.zeros(rows, size, size, dtype=torch.bool)
    assert packing.spans is not None
    for span in packing.spans:
        own = torch.ones(span.stop - span.start, span.stop - span.start, dtype=torch.bool).tril()
        masks_BSS[span.row, span.start : span.stop, span.start : span.stop] = (
            own if span.mask_SS is None else span.mask_SS
        )
    return masks_BSS


@given(
    st.lists(st.lists(st.integers(3, 6), min_size=12, max_size=12), min_size=1, max_size=3),
    st.sampled_from([1, 3, 512]),
)
def test_positions_and_masks_are_megatrons(rows: list[list[int]], short: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module, "SHORT", short)
        packing = read_packing(torch.tensor(rows), EOD, positions=True, attention=True)
    assert packing.positions_BS is not None
    masks_BSS = whole_masks(packing, len(rows), 12)
    for row, tokens in enumerate(rows):
        positions, mask = megatrons(tokens)
        assert packing.positions_BS[row].tolist() == positions
        assert masks_BSS[row].tolist() == mask


def test_short_neighbours_attend_in_one_call_and_long_documents_without_a_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing_module, "SHORT", 4)
    tokens = torch.tensor([[1, EOD, 1, EOD, 1, EOD, 1, 1, 1, 1, 1, EOD, 1, 1], [1] * 14])
    packing = read_packing(tokens, EOD, positions=False, attention=True)
    assert packing.spans is not None
    found = [(span.row, span.start, span.stop, span.mask_SS is not None) for span in packing.spans]
    assert found == [(0, 0, 4, True), (0, 4, 6, False), (0, 6, 12, False), (0, 12, 14, False), (1, 0, 14, False)]


def test_what_is_not_asked_for_is_left_alone() -> None:
    tokens = torch.tensor([[1, EOD, 2]])
    assert read_packing(tokens, EOD, positions=False, attention=True).positions_BS is None
    assert read_packing(tokens, EOD, positions=True, attention=False).spans is None


def test_rows_attend_as_under_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "SHORT", 5)
    tokens = torch.tensor([[1, 1, EOD, 1, EOD, 1, 1, 1, 1, 1], [EOD, 1, 1, 1, 1, 1, 1, EOD, 1, 1]])
    packing = read_packing(tokens, EOD, positions=False, attention=True)
    q, k, v = (torch.randn(2, heads, 10, 4, dtype=torch.float64) for heads in (4, 2, 2))
    masked = attend(q, k, v, mask_ST=whole_masks(packing, 2, 10).unsqueeze(1))
    torch.testing.assert_close(attend_spans(q, k, v, packing.spans), masked, rtol=1e-12, atol=1e-12)


def stage_of(mixer: str, recompute: str | None) -> Stage:
    plan = tiny_plan(mixer=mixer, seq_length=16)
    stage = Stage(plan, dtype=torch.float64, options=BlockOptions(recompute=recompute))  # type: ignore[arg-type]
    init_stage(stage, plan, seed=1)
    return stage


@pytest.mark.parametrize("recompute", [None, "full", "selective"])
@pytest.mark.parametrize("mixer", ["attention", "gated_attention"])
@pytest.mark.parametrize(("positions", "short"), [(False, 512), (True, 512), (True, 6), (True, 1)])
def test_packed_documents_give_the_logits_and_gradients_of_each_alone(
    mixer: str, recompute: str | None, positions: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing_module, "SHORT", short)
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
