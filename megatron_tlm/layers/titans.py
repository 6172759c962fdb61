"""Titans' mixers (arXiv:2501.00663): a neural memory alone, or beside attention over a window.

    lmm   y = norm(memory([P; x])) * sigmoid(x W_z)
    mag   y = norm(attention([P; x])) * sigmoid(norm(memory([P; x])))        then  y W_o

P are persistent tokens: learned, the same in front of every sequence, seen by attention whatever its window, dropped
from the output. Norms are per head, with a weight each. In `mag`, attention has rotary positions and projections of its
own; the memory has no positions, its recurrence and filters carry order.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, H head width, n and k this rank's query and
key/value heads, P persistent tokens, T = P + tokens seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron_tlm.comm.collectives import copy_to
from megatron_tlm.comm.rng import shard_stream
from megatron_tlm.layers.attention import Attention, attend
from megatron_tlm.layers.cache import KeyValueCache
from megatron_tlm.layers.linear import ColumnLinear, RowLinear
from megatron_tlm.layers.memory import MemoryCache, MemorySizes, NeuralMemory
from megatron_tlm.layers.norm import HeadNorm
from megatron_tlm.layers.packing import Span
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions, ResidualBlock


class TitansLmm(ResidualBlock):
    """A memory in the place of attention."""

    def __init__(
        self,
        sizes: MemorySizes,
        *,
        persistent_tokens: int,
        epsilon: float,
        placement: Placement,
        options: BlockOptions,
    ) -> None:
        super().__init__(sizes.width, epsilon, placement, options)
        channels = sizes.num_heads * sizes.head_width
        self.persistent = _persistent(persistent_tokens, sizes.width, placement)
        self.memory = NeuralMemory(sizes, placement, compiled=options.compile_memory)
        self.memory_norm = HeadNorm(sizes.num_heads, sizes.head_width, epsilon, placement)
        self.z = ColumnLinear(sizes.width, channels, placement)
        self.o = RowLinear(channels, sizes.width, placement)

    def new_cache(self, batch: int, capacity: int) -> MemoryCache:
        """A memory that has read nothing; its size does not depend on how much it will read."""
        return MemoryCache()

    def branch(self, x_BsD: Tensor, *, cache: MemoryCache | None = None, position: int = 0, **state: Any) -> Tensor:
        """`position` is that of the first token; it has to follow on what the cache has read."""
        if cache is not None:
            cache.expect(position)
        x_BSD, kept = self.placement.enter(x_BsD)
        persistent = None if self.persistent is None else copy_to(self.persistent, self.placement.tensor)
        y_BSf = self.memory_norm(self.memory(x_BSD, kept, persistent, cache)).flatten(2)
        gate = self.z(x_BSD, kept=kept)
        o_BsD: Tensor = self.o(y_BSf * torch.sigmoid(gate.to(torch.promote_types(gate.dtype, torch.float32))).to(y_BSf))
        return o_BsD


@dataclass(frozen=True)
class MagCache:
    """Of both branches; the keys and values of the persistent tokens come first."""

    attention: KeyValueCache
    memory: MemoryCache


class TitansMag(Attention):
    """Attention over `window` tokens, gated by a memory of everything before."""

    def __init__(
        self,
        sizes: MemorySizes,
        num_groups: int,
        *,
        persistent_tokens: int,
        window: int,
        epsilon: float,
        placement: Placement,
        options: BlockOptions,
        **attention: Any,
    ) -> None:
        super().__init__(
            sizes.width,
            sizes.num_heads,
            num_groups,
            sizes.head_width,
            epsilon=epsilon,
            placement=placement,
            options=options,
            **attention,
        )
        self.window = window
        self.persistent = _persistent(persistent_tokens, sizes.width, placement)
        self.memory = NeuralMemory(sizes, placement, compiled=options.compile_memory)
        self.attention_norm = HeadNorm(sizes.num_heads, sizes.head_width, epsilon, placement)
        self.memory_norm = HeadNorm(sizes.num_heads, sizes.head_width, epsilon, placement)

    @property
    def num_persistent(self) -> int:
        return 0 if self.persistent is None else self.persistent.shape[0]

    def new_cache(self, batch: int, capacity: int) -> Any:
        """Room for the keys of all tokens, though a window's are looked at; the memory's size is fixed."""
        return MagCache(super().new_cache(batch, self.num_persistent + capacity), MemoryCache())

    def branch(self, x_BsD: Tensor, *, cache: Any = None, position: int = 0, **state: Any) -> Tensor:
        """`position` is that of the first token; it has to follow on what the cache has read."""
        if cache is not None:
            cache.memory.expect(position)
        x_BSD, kept = self.placement.enter(x_BsD)
        persistent = None if self.persistent is None else copy_to(self.persistent, self.placement.tensor)
        u_BSnH = self.memory(x_BSD, kept, persistent, None if cache is None else cache.memory)

        front = self.num_persistent
        q_BnSH = self._queries_or_keys(self.q(x_BSD, kept=kept), self.q_norm, front + position)
        keys = self._queries_or_keys(self.k(x_BSD, kept=kept), self.k_norm, front + position)
        values = self._heads(self.v(x_BSD, kept=kept))
        written_from = front + position
        if persistent is not None and position == 0:
            batch, written_from = x_BSD.shape[0], 0
            front_keys = self._queries_or_keys(self.k(persistent.unsqueeze(0)), self.k_norm, 0)
            front_values = self._heads(self.v(persistent.unsqueeze(0)))
            keys = torch.cat((front_keys.expand(batch, -1, -1, -1), keys), dim=2)
            values = torch.cat((front_values.expand(batch, -1, -1, -1), values), dim=2)
        if cache is not None:
            keys, values = cache.attention.write(keys, values, written_from)
        if self.options.recompute == "selective" and self.training and torch.is_grad_enabled():
            y_BnSH = checkpoint(
                self._core, q_BnSH, keys, values, use_reentrant=False, preserve_rng_state=self.options.draws
            )
        else:
            y_BnSH = self._core(q_BnSH, keys, values)
        gate = torch.sigmoid(self.memory_norm(u_BSnH).to(u_BSnH.dtype))
        y_BSnH = self.attention_norm(y_BnSH.transpose(1, 2))
        o_BsD: Tensor = self.o((y_BSnH * gate.to(y_BSnH.dtype)).flatten(2))
        return o_BsD

    def _heads(self, x_BSc: Tensor) -> Tensor:
        return x_BSc.view(*x_BSc.shape[:2], -1, self.head_width).transpose(1, 2)

    def _queries_or_keys(self, x_BSc: Tensor, norm: Any, position: int) -> Tensor:
        x_BSnH = x_BSc.view(*x_BSc.shape[:2], -1, self.head_width)
        return self.rotary.turn(x_BSnH if norm is None else norm(x_BSnH), position).transpose(1, 2)

    def _core(self, q_BnSH: Tensor, k_BkTH: Tensor, v_BkTH: Tensor, spans: Sequence[Span] | None = None) -> Tensor:
        assert spans is None  # memory runs through documents: packing is refused for this mixer
        dropout = self.options.attention_dropout if self.training else 0.0
        if dropout == 0.0:
            return attend_window(q_BnSH, k_BkTH, v_BkTH, self.num_persistent, self.window)
        with shard_stream(self.placement.tensor, q_BnSH.device):
            return attend_window(q_BnSH, k_BkTH, v_BkTH, self.num_persistent, self.window, dropout)


def attend_window(
    q_BnSH: Tensor, k_BkTH: Tensor, v_BkTH: Tensor, persistent: int, window: int, dropout: float = 0.0
) -> Tensor:
    """Attention to the first `persistent` keys, and to the `window` last ones up to each query's own.

    The last query belongs to the last key. Block by block of `window` queries, so that long sequences cost linearly.
    """
    length, seen = q_BnSH.shape[2], k_BkTH.shape[2] - persistent
    if seen <= window:
        return attend(q_BnSH, k_BkTH, v_BkTH, dropout)
    outputs = []
    for start in range(seen - length, seen, window):
        stop = min(start + window, seen)
        oldest = max(0, start - window + 1)
        query, key = torch.arange(start, stop, device=q_BnSH.device), torch.arange(oldest, stop, device=q_BnSH.device)
        ages = query.unsqueeze(1) - key
        mask = torch.nn.functional.pad((ages >= 0) & (ages < window), (persistent, 0), value=True)
        block = q_BnSH[:, :, start - seen + length : stop - seen + length]
        keys, values = (
            torch.cat((x[:, :, :persistent], x[:, :, persistent + oldest : persistent + stop]), dim=2)
            for x in (k_BkTH, v_BkTH)
        )
        outputs.append(attend(block, keys, values, dropout, mask))
    return torch.cat(outputs, dim=2)


def _persistent(tokens: int, width: int, placement: Placement) -> Any:
    return placement.parameter((tokens, width), sharded=False) if tokens else None
