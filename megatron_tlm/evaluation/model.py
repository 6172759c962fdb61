"""A model that nobody trains, on any grid of ranks: each runs its stage, and passes on what comes out.

Every rank is asked for the same things in the same order. Data ranks may each take sequences of their own.

Shapes: B batch, S sequence, D model width, v this rank's share of the padded vocabulary, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_tlm.comm.collectives import gather_sequence, max_over
from megatron_tlm.comm.groups import AxisGroup, Mesh, single_mesh
from megatron_tlm.comm.stages import from_last, receive_from_previous, send_to_next
from megatron_tlm.errors import PlanError
from megatron_tlm.model.stage import Stage, StageCache


@dataclass(frozen=True)
class Model:
    """This rank's stage, and its place among the others; built by `restore.load_model`, or `whole_model`."""

    stage: Stage
    mesh: Mesh

    @property
    def vocab_size(self) -> int:
        return self.stage.plan.shape.vocab_size

    @property
    def device(self) -> torch.device:
        return next(self.stage.parameters()).device

    @property
    def is_last(self) -> bool:
        """Whether this rank's stage ends in logits."""
        return self.mesh.pipe.rank == self.mesh.pipe.size - 1

    def logits(
        self, tokens_BS: Tensor, cache: StageCache | None = None, position: int = 0, *, last_only: bool = False
    ) -> Tensor | None:
        """This rank's [B, S, v] on the last stage, None on the others. Collective over tensor and pipe."""
        pipe, x = self.mesh.pipe, tokens_BS.to(self.device)
        if pipe.rank > 0:
            size = (*tokens_BS.shape, self.stage.plan.shape.hidden_size)
            x = receive_from_previous(size, next(self.stage.parameters()).dtype, self.device, pipe)
        out: Tensor = self.stage(x, cache, position, last_only=last_only)
        if self.is_last:
            return out
        send_to_next(out, pipe)
        return None

    def last_logits(self, tokens_BS: Tensor, cache: StageCache | None = None, position: int = 0) -> Tensor:
        """The logits [B, V] behind the last token, on the CPU, equal on every stage and tensor rank."""
        logits_B1v = self.logits(tokens_BS, cache, position, last_only=True)
        batch, padded = tokens_BS.shape[0], self.stage.plan.padded_vocab_size
        if logits_B1v is None:
            dtype = next(self.stage.parameters()).dtype
            logits_BV = torch.empty((batch, padded), dtype=dtype, device=self.device)
        else:
            logits_BV = gather_sequence(logits_B1v[:, -1], self.mesh.tensor)
        return from_last(logits_BV, self.mesh.pipe)[:, : self.vocab_size].cpu()


def whole_model(stage: Stage) -> Model:
    """A stage that is a whole model, on this process alone. PlanError where it is not."""
    if len(stage.units) != len(stage.plan.units) or stage.tensor.size > 1:
        raise PlanError(
            f"stage = {len(stage.units)} of {len(stage.plan.units)} units on {stage.tensor.size} tensor ranks is not "
            "a whole model; build it with tensor 1 and pipe 1"
        )
    return Model(stage, single_mesh())


def likeliest(logits_BSv: Tensor, tensor: AxisGroup, vocab_size: int) -> Tensor:
    """The id [B, S] of the largest logit, of several equal ones the first; equal on all tensor ranks."""
    first = tensor.rank * logits_BSv.shape[-1]
    num_valid = min(max(vocab_size - first, 0), logits_BSv.shape[-1])
    # A rank may hold nothing but padding; one column of -inf gives it a maximum all the same.
    valid_BSv = logits_BSv[..., :num_valid] if num_valid else torch.full_like(logits_BSv[..., :1], -torch.inf)
    peak_BS, index_BS = valid_BSv.max(dim=-1).values, valid_BSv.argmax(dim=-1) + first
    absent_BS = peak_BS < max_over(peak_BS, tensor)
    return -max_over(-index_BS.masked_fill(absent_BS, vocab_size), tensor)
