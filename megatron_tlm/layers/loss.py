"""Cross-entropy over a vocabulary that is shared out over tensor ranks, without ever gathering the logits.

    loss = log sum_j exp(z_j - m) - (z_label - m),  m = max_j z_j,  j over the true vocabulary

Two all-reduces of [B, S]: the maximum, then the sum and the label's logit together. The softmax is kept in one
float32 buffer, which becomes the gradient in place; a second backward through it is an error of torch's.

Shapes: B microbatch, S sequence, v this rank's share of the padded vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from megatron_tlm.comm.collectives import max_over, sum_over
from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.errors import DataError


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BSv: Tensor, labels_BS: Tensor, axis: AxisGroup, first: int, num_valid: int) -> Tensor:
        wide = torch.promote_types(logits_BSv.dtype, torch.float32)
        z_BSv = logits_BSv.to(wide)
        # A rank may hold nothing but padding; one column of -inf gives it a maximum all the same.
        valid_BSv = z_BSv[..., :num_valid] if num_valid else z_BSv.new_full((*labels_BS.shape, 1), -torch.inf)
        peak_BS1 = max_over(valid_BSv.amax(dim=-1, keepdim=True), axis)
        softmax_BSv = z_BSv - peak_BS1 if z_BSv is logits_BSv else z_BSv.sub_(peak_BS1)

        index_BS = labels_BS - first
        elsewhere_BS = (index_BS < 0) | (index_BS >= num_valid)
        index_BS1 = index_BS.masked_fill(elsewhere_BS, 0).unsqueeze(-1)
        label_BS = softmax_BSv.gather(-1, index_BS1).squeeze(-1).masked_fill(elsewhere_BS, 0.0)

        softmax_BSv.exp_()
        softmax_BSv[..., num_valid:] = 0.0
        total_BS, label_BS = sum_over(torch.stack((softmax_BSv.sum(dim=-1), label_BS)), axis).unbind()
        if ctx.needs_input_grad[0]:
            softmax_BSv.div_(total_BS.unsqueeze(-1))
            ctx.dtype = logits_BSv.dtype
            ctx.save_for_backward(softmax_BSv, index_BS1, elsewhere_BS)
        return total_BS.log() - label_BS

    @staticmethod
    def backward(ctx: Any, grad_BS: Tensor) -> tuple[Tensor, None, None, None, None]:
        softmax_BSv, index_BS1, elsewhere_BS = ctx.saved_tensors
        here_BS1 = (~elsewhere_BS).to(softmax_BSv.dtype).unsqueeze(-1)
        grad_BSv = softmax_BSv.scatter_add_(-1, index_BS1, -here_BS1).mul_(grad_BS.unsqueeze(-1))
        return grad_BSv.to(ctx.dtype), None, None, None, None


def vocab_parallel_cross_entropy(logits_BSv: Tensor, labels_BS: Tensor, tensor: AxisGroup, vocab_size: int) -> Tensor:
    """Loss [B, S] in float32 (float64 for float64) of this rank's logits [B, S, v]; equal on all tensor ranks.

    `vocab_size` is the true one: columns beyond it are padding. DataError for a label outside it, where looking is free
    (on the CPU; a GPU would have to wait).
    """
    if not labels_BS.is_cuda and labels_BS.numel():
        low, high = (int(bound) for bound in labels_BS.aminmax())
        if low < 0 or high >= vocab_size:
            raise DataError(
                f"labels = {low}..{high} leave the vocabulary of {vocab_size} ids; use the tokenizer the model has"
            )
    local_size = logits_BSv.shape[-1]
    first = tensor.rank * local_size
    num_valid = min(max(vocab_size - first, 0), local_size)
    loss: Tensor = _CrossEntropy.apply(logits_BSv, labels_BS, tensor, first, num_valid)  # type: ignore[no-untyped-call]
    return loss
