"""Causal grouped-query attention (arXiv:2305.13245) with rotary positions, its heads shared out over tensor ranks.

    query head i reads key/value head i // (N / K)

With K >= tensor degree each rank owns K / degree key/value heads and the queries that read them. With fewer, each
rank holds the whole key and value weights and computes only the heads that its queries read.

Shapes: B microbatch, S sequence, s this rank's share of it, T keys seen, D model width, N query heads, K key/value
heads, H head width; n and k this rank's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron_tlm.comm.rng import shard_stream
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.cache import KeyValueCache
from megatron_tlm.layers.linear import ColumnLinear, ReplicatedLinear, RowLinear
from megatron_tlm.layers.norm import SharedHeadNorm
from megatron_tlm.layers.packing import Packing, Span
from megatron_tlm.layers.placement import Kept, Placement
from megatron_tlm.layers.residual import BlockOptions, ResidualBlock
from megatron_tlm.layers.rope import RotaryEmbedding
from megatron_tlm.plan.shards import local_width


@dataclass(frozen=True)
class HeadShare:
    """The heads that one tensor rank computes; `replicated` where it holds the weights of all key/value heads."""

    num_queries: int
    groups: range
    replicated: bool


def share_heads(num_heads: int, num_groups: int, degree: int, rank: int) -> HeadShare:
    """The heads of rank `rank` out of `degree`; PlanError where they cannot be shared out evenly."""
    num_queries = local_width(num_heads, degree, "num_attention_heads")
    if num_heads % num_groups or (num_groups % degree and degree % num_groups):
        raise PlanError(
            f"num_query_groups = {num_groups} divides neither into {num_heads} heads nor over {degree} tensor ranks; "
            "give a divisor of the former that is a multiple or a divisor of the latter"
        )
    if degree > num_groups:
        group = rank * num_groups // degree
        return HeadShare(num_queries, range(group, group + 1), replicated=True)
    num_local = num_groups // degree
    return HeadShare(num_queries, range(rank * num_local, (rank + 1) * num_local), replicated=False)


def attend(
    q_BnSH: Tensor, k_BkTH: Tensor, v_BkTH: Tensor, dropout: float = 0.0, mask_ST: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over the keys up to each query's own; the last query belongs to the last key.

    [B, n, S, H], [B, k, T, H] twice, T >= S -> [B, n, S, H]. Flash where the device has it. `mask_ST` says what is
    seen (True) where that is something else; it may be [B, 1, S, T] as well.
    """
    length, seen = q_BnSH.shape[2], k_BkTH.shape[2]
    masked = mask_ST is not None
    if not masked and 1 < length < seen:
        mask_ST = torch.ones(length, seen, dtype=torch.bool, device=q_BnSH.device).tril(seen - length)
    return F.scaled_dot_product_attention(
        q_BnSH,
        k_BkTH,
        v_BkTH,
        attn_mask=mask_ST,
        dropout_p=dropout,
        is_causal=length == seen and length > 1 and not masked,
        enable_gqa=q_BnSH.shape[1] != k_BkTH.shape[1],
    )


def attend_spans(
    q_BnSH: Tensor, k_BkTH: Tensor, v_BkTH: Tensor, spans: Sequence[Span] | None, dropout: float = 0.0
) -> Tensor:
    """`attend` within each span, in time and memory of their squares; None: within each row, whose T may be > S."""
    if spans is None:
        return attend(q_BnSH, k_BkTH, v_BkTH, dropout)
    outputs = []
    for span in spans:
        own = (slice(span.row, span.row + 1), slice(None), slice(span.start, span.stop))
        outputs.append(attend(q_BnSH[own], k_BkTH[own], v_BkTH[own], dropout, span.mask_SS))
    rows, heads, length, width = q_BnSH.shape
    return torch.cat(outputs, dim=2).view(heads, rows, length, width).transpose(0, 1)


class Attention(ResidualBlock):
    """The mixer of Transformer++."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_groups: int,
        head_width: int,
        *,
        rotary_base: float,
        epsilon: float,
        placement: Placement,
        options: BlockOptions,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(width, epsilon, placement, options)
        self.head_width = head_width
        self.heads = share_heads(num_heads, num_groups, placement.tensor.size, placement.tensor.rank)
        self.rotary = RotaryEmbedding(head_width, rotary_base)
        self.q = ColumnLinear(width, num_heads * head_width, placement)
        self.k = self._group_projection(width, num_groups)
        self.v = self._group_projection(width, num_groups)
        self.o = RowLinear(num_heads * head_width, width, placement)
        self.q_norm = SharedHeadNorm(head_width, epsilon, placement) if qk_norm else None
        self.k_norm = SharedHeadNorm(head_width, epsilon, placement) if qk_norm else None

    def _group_projection(self, width: int, num_groups: int) -> nn.Module:
        out_size = num_groups * self.head_width
        if not self.heads.replicated:
            return ColumnLinear(width, out_size, self.placement)
        rows = range(self.heads.groups.start * self.head_width, self.heads.groups.stop * self.head_width)
        return ReplicatedLinear(width, out_size, rows, self.placement)

    def new_cache(self, batch: int, capacity: int) -> KeyValueCache:
        """An empty cache for `capacity` tokens of `batch` sequences."""
        return KeyValueCache(
            batch,
            len(self.heads.groups),
            capacity,
            self.head_width,
            dtype=self.q.weight.dtype,
            device=self.q.weight.device,
        )

    def branch(
        self,
        x_BsD: Tensor,
        *,
        cache: KeyValueCache | None = None,
        position: int = 0,
        packing: Packing | None = None,
        **state: Any,
    ) -> Tensor:
        """`position` is that of the first token; without a cache it must be the first key as well."""
        x_BSD, kept = self.placement.enter(x_BsD)
        q_BSnH, k_BSkH, v_BSkH = (
            project(x_BSD, kept=kept).unflatten(-1, (-1, self.head_width)) for project in (self.q, self.k, self.v)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q_BSnH, k_BSkH = self.q_norm(q_BSnH), self.k_norm(k_BSkH)
        positions = packing.positions_BS if packing is not None else None
        q_BSnH, k_BSkH = self.rotary(q_BSnH, k_BSkH, position if positions is None else positions)
        q_BnSH, k_BkSH, v_BkSH = q_BSnH.transpose(1, 2), k_BSkH.transpose(1, 2), v_BSkH.transpose(1, 2)
        if cache is not None:
            k_BkSH, v_BkSH = cache.write(k_BkSH, v_BkSH, position)
        spans = packing.spans if packing is not None else None
        if self.options.recompute == "selective" and self.training and torch.is_grad_enabled():
            y_BnSH = checkpoint(
                self._core, q_BnSH, k_BkSH, v_BkSH, spans, use_reentrant=False, preserve_rng_state=self.options.draws
            )
        else:
            y_BnSH = self._core(q_BnSH, k_BkSH, v_BkSH, spans)
        o_BsD: Tensor = self.o(self.gated(y_BnSH.transpose(1, 2), x_BSD, kept).flatten(2))
        return o_BsD

    def gated(self, y_BSnH: Tensor, x_BSD: Tensor, kept: Kept | None) -> Tensor:
        """What of the heads' outputs goes on to the output projection: here, all."""
        return y_BSnH

    def _core(self, q_BnSH: Tensor, k_BkTH: Tensor, v_BkTH: Tensor, spans: Sequence[Span] | None = None) -> Tensor:
        dropout = self.options.attention_dropout if self.training else 0.0
        if dropout == 0.0:
            return attend_spans(q_BnSH, k_BkTH, v_BkTH, spans)
        with shard_stream(self.placement.tensor, q_BnSH.device):
            return attend_spans(q_BnSH, k_BkTH, v_BkTH, spans, dropout)
