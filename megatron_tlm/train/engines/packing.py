"""What ends of documents mean for training: Megatron's --reset-position-ids, --reset-attention-mask, --eod-mask-loss.

A label that does not count is IGNORED. The loss is the mean over the labels that count in the whole global batch, so a
step's micro-batches are looked at before the first of them is trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup, all_reduce_sum
from megatron_tlm.config.schema import DataConfig
from megatron_tlm.errors import ConfigError
from megatron_tlm.layers.packing import Packing, read_packing

IGNORED = -1
PACKABLE_MIXERS = ("attention", "gated_attention")


@dataclass(frozen=True)
class PackRules:
    """What is done at an end-of-document id; by default nothing."""

    eod_id: int = IGNORED
    positions: bool = False
    attention: bool = False
    mask_loss: bool = False

    @property
    def changes_model(self) -> bool:
        return self.positions or self.attention

    def split(self, batch: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """[B, S + 1] -> tokens [B, S] and the labels [B, S] that follow them; after an end, none if so asked."""
        whole = torch.from_numpy(batch).to(device, non_blocking=True)
        tokens_BS, labels_BS = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        if self.mask_loss:
            # Not in place: of a single row both are views of the batch itself.
            labels_BS = labels_BS.masked_fill(tokens_BS == self.eod_id, IGNORED)
        return tokens_BS, labels_BS

    def packing(self, batch: NDArray[np.int64], device: torch.device) -> Packing | None:
        """Of the tokens that `split` makes of the batch."""
        if not self.changes_model:
            return None
        tokens_BS = torch.from_numpy(batch)[:, :-1]
        return read_packing(tokens_BS, self.eod_id, positions=self.positions, attention=self.attention, device=device)

    def token_weight(self, batches: Sequence[NDArray[np.int64]], data: AxisGroup) -> float | None:
        """What each label that counts weighs in a step's mean, times ranks and micro-batches, which engines divide by.

        None where all count alike. Collective over the data axis.
        """
        if not self.mask_loss:
            return None
        counted = sum(int((batch[:, :-1] != self.eod_id).sum()) for batch in batches)
        (total,) = all_reduce_sum([float(counted)], data)
        return len(batches) * data.size / max(total, 1.0)


def pack_rules(config: DataConfig, eod_id: int | None, mixer: str) -> PackRules:
    """ConfigError where documents cannot be told apart, or where a mixer carries one into the next."""
    asked = [name for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss") if getattr(config, name)]
    if not asked:
        return PackRules()
    if eod_id is None:
        raise ConfigError(
            f"data.{asked[0]} = True needs to know which id ends a document; give the --tokenizer-model of the corpus"
        )
    rules = PackRules(eod_id, config.reset_position_ids, config.reset_attention_mask, config.eod_mask_loss)
    if rules.changes_model and mixer not in PACKABLE_MIXERS:
        raise ConfigError(
            f"data.{asked[0]} = True asks for documents that do not see each other, but the memory of mixer {mixer} "
            f"runs through them all; leave it out, or take one of {', '.join(PACKABLE_MIXERS)}"
        )
    return rules
