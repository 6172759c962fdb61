"""What ends of documents mean for the loss, and where they cannot be honoured."""

import numpy as np
import pytest
import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.schema import DataConfig
from megatron_tlm.errors import ConfigError
from megatron_tlm.train.engines.engine import mean_loss
from megatron_tlm.train.engines.packing import IGNORED, PackRules, pack_rules

CPU = torch.device("cpu")
ALL = DataConfig(reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True)


def test_without_rules_nothing_changes() -> None:
    rules = pack_rules(DataConfig(), None, "titans_lmm")
    tokens, labels = rules.split(np.array([[1, 7, 2, 3]]), CPU)
    assert (tokens.tolist(), labels.tolist()) == ([[1, 7, 2]], [[7, 2, 3]])
    assert rules.packing(np.array([[1, 7, 2, 3]]), CPU) is None
    assert rules.token_weight([np.array([[1, 7, 2, 3]])], AxisGroup.single()) is None


def test_the_label_after_an_end_is_left_out_and_the_others_are_averaged() -> None:
    rules = pack_rules(ALL, 7, "attention")
    batches = [np.array([[1, 7, 2, 3]]), np.array([[7, 7, 7, 4]])]
    _, labels = rules.split(batches[0], CPU)
    assert labels.tolist() == [[7, IGNORED, 3]]
    assert batches[0].tolist() == [[1, 7, 2, 3]]
    weight = rules.token_weight(batches, AxisGroup.single())
    assert weight == 2 / 2  # two micro-batches over the two labels that count
    logits = torch.randn(1, 3, 9)
    plain = torch.nn.functional.cross_entropy(logits[0], torch.tensor([7, 0, 3]), reduction="none")
    found = mean_loss(logits, labels, AxisGroup.single(), 9, weight)
    torch.testing.assert_close(found, (plain[0] + plain[2]) * weight)


def test_a_step_of_nothing_but_ends_has_no_loss() -> None:
    rules = PackRules(7, mask_loss=True)
    batch = np.full((1, 4), 7)
    _, labels = rules.split(batch, CPU)
    weight = rules.token_weight([batch], AxisGroup.single())
    assert float(mean_loss(torch.randn(1, 3, 9), labels, AxisGroup.single(), 9, weight)) == 0


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.reset_position_ids = True needs to know which id ends a document"):
        pack_rules(ALL, None, "attention")
    with pytest.raises(ConfigError, match=r"data\.reset_attention_mask = True asks .* memory of mixer titans_lmm runs"):
        pack_rules(DataConfig(reset_attention_mask=True), 7, "titans_lmm")
    assert pack_rules(DataConfig(eod_mask_loss=True), 7, "titans_lmm").mask_loss
