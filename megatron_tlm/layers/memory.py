"""A neural memory per head: what it is fed, what it remembers between calls, and how a long sequence is read.

    q, k, v = silu(filter(x W))          filter: causal, one per channel, a few tokens wide
    q, k to length 1, per head; theta, eta, alpha from x: per token, head and layer of the memory

The sequence is read in segments whose insides are recomputed in backward. Keeping every chunk's weights would cost
gigabytes per layer and sequence; a segment of 16 chunks keeps its first state alone.

Shapes: B microbatch, S new tokens, T = P + S with the persistent ones in front, D model width, H head width, n this
rank's heads, M = B n, w width of the filters.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron_tlm.errors import PlanError
from megatron_tlm.layers.linear import ColumnLinear, column_product
from megatron_tlm.layers.memory_recurrence import Gates, State, Weights, initial_state, run_segment
from megatron_tlm.layers.placement import Kept, Placement
from megatron_tlm.plan.mixers import MEMORY_LAYERS
from megatron_tlm.plan.shards import local_width

SEGMENT_CHUNKS = 16
STREAMS = ("q", "k", "v")


@dataclass(frozen=True)
class MemorySizes:
    """Of one layer's memories, over all tensor ranks; `max_step` bounds theta."""

    width: int
    num_heads: int
    head_width: int
    inner_width: int
    chunk_size: int
    conv_width: int
    max_step: float


@dataclass
class MemoryCache:
    """What a block's memories are after `position` tokens: their state, the open chunk's anchor, the filters' past."""

    position: int = 0
    state: State | None = None
    anchor: Weights | None = None
    phase: int = 0
    past: dict[str, Tensor] = field(default_factory=dict)

    def expect(self, position: int) -> None:
        """PlanError where the tokens do not follow on those that were read: a memory cannot go back."""
        if position != self.position:
            raise PlanError(
                f"cache position = {position} does not follow on the {self.position} tokens that were read; "
                "begin with a new cache"
            )


class CausalFilter(nn.Module):
    """y_t = sum_i weight_i x_{t - w + 1 + i}, channel by channel; before the first token stand zeros."""

    def __init__(self, channels: int, width: int, placement: Placement) -> None:
        super().__init__()
        local_channels = local_width(channels, placement.tensor.size, "filter channels")
        self.weight = placement.parameter((local_channels, width), sharded=True)

    def forward(self, x_BTc: Tensor, past_Bwc: Tensor | None) -> Tensor:
        """[B, T, c] and the w - 1 inputs before them -> [B, T, c]."""
        channels, width = self.weight.shape
        x_BcT = x_BTc.mT
        padded = F.pad(x_BcT, (width - 1, 0)) if past_Bwc is None else torch.cat((past_Bwc.mT, x_BcT), dim=-1)
        return F.conv1d(padded, self.weight.unsqueeze(1), groups=channels).mT


class MemoryGate(nn.Module):
    """Logits of one of theta, eta, alpha."""

    def __init__(self, width: int, num_heads: int, placement: Placement) -> None:
        super().__init__()
        heads = local_width(num_heads, placement.tensor.size, "num_attention_heads")
        self.weight = placement.parameter((heads, MEMORY_LAYERS, width), sharded=True)
        self.bias = placement.parameter((heads, MEMORY_LAYERS), sharded=True)

    def forward(self, x_BSD: Tensor, *, kept: Kept | None = None) -> Tensor:
        """[B, S, D] -> [B, S, n, L], float32 or wider."""
        logits = column_product(x_BSD, self.weight.flatten(0, 1), kept)
        return _wide(logits).view(*logits.shape[:2], *self.bias.shape) + _wide(self.bias)


class NeuralMemory(nn.Module):
    """This rank's memories. `first` and `second` are W_0; `scale` and `shift`, of the norm inside, are not written."""

    def __init__(self, sizes: MemorySizes, placement: Placement, *, compiled: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        self.compiled = compiled
        self.segment_chunks = SEGMENT_CHUNKS
        heads = local_width(sizes.num_heads, placement.tensor.size, "num_attention_heads")
        head, inner, channels = sizes.head_width, sizes.inner_width, sizes.num_heads * sizes.head_width
        for name in STREAMS:
            self.add_module(name, ColumnLinear(sizes.width, channels, placement))
            self.add_module(f"{name}_conv", CausalFilter(channels, sizes.conv_width, placement))
        self.step = MemoryGate(sizes.width, sizes.num_heads, placement)
        self.momentum = MemoryGate(sizes.width, sizes.num_heads, placement)
        self.forget = MemoryGate(sizes.width, sizes.num_heads, placement)
        self.first = placement.parameter((heads, inner, head), sharded=True)
        self.second = placement.parameter((heads, head, inner), sharded=True)
        self.scale = placement.parameter((heads, head), sharded=True)
        self.shift = placement.parameter((heads, head), sharded=True)

    def forward(
        self, x_BSD: Tensor, kept: Kept | None, persistent_PD: Tensor | None, cache: MemoryCache | None
    ) -> Tensor:
        """What is read at each of the S tokens, [B, S, n, H], float32 or wider.

        The persistent tokens are read first, by every sequence; with a cache, at its beginning.
        """
        front = None if persistent_PD is None or (cache is not None and cache.position) else persistent_PD.unsqueeze(0)
        streams = {name: self._stream(name, x_BSD, kept, front, cache) for name in STREAMS}
        for name in ("q", "k"):
            streams[name] = streams[name] * torch.rsqrt(streams[name].square().sum(-1, keepdim=True) + 1e-6)
        logits = (self._gate(gate, x_BSD, kept, front) for gate in (self.step, self.momentum, self.forget))
        step, momentum, forget = logits
        gates = Gates(self.sizes.max_step * torch.sigmoid(step), F.logsigmoid(momentum), F.logsigmoid(-forget))
        q, k, v = (streams[name].transpose(1, 2).flatten(0, 1) for name in STREAMS)
        o_MTH = self._read(q, k, v, gates, x_BSD.shape[0], cache)
        if cache is not None:
            cache.position += x_BSD.shape[1]
        o_BnTH = o_MTH.view(x_BSD.shape[0], -1, *o_MTH.shape[1:])
        return o_BnTH[:, :, -x_BSD.shape[1] :].transpose(1, 2)

    def _stream(
        self, name: str, x_BSD: Tensor, kept: Kept | None, front: Tensor | None, cache: MemoryCache | None
    ) -> Tensor:
        """q, k or v of all T tokens, [B, T, n, H]."""
        project = self.get_submodule(name)
        y_BTc = _behind(None if front is None else project(front), project(x_BSD, kept=kept))
        past = None
        if cache is not None:
            past = cache.past.get(name, y_BTc.new_zeros(y_BTc.shape[0], self.sizes.conv_width - 1, y_BTc.shape[2]))
            reach = torch.cat((past, y_BTc), dim=1)
            cache.past[name] = reach[:, reach.shape[1] - self.sizes.conv_width + 1 :]
        active = F.silu(_wide(self.get_submodule(f"{name}_conv")(y_BTc, past)))
        return active.view(*active.shape[:2], -1, self.sizes.head_width)

    @staticmethod
    def _gate(gate: MemoryGate, x_BSD: Tensor, kept: Kept | None, front: Tensor | None) -> Tensor:
        logits = _behind(None if front is None else gate(front), gate(x_BSD, kept=kept))
        return logits.permute(0, 2, 3, 1).flatten(0, 1)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, gates: Gates, batch: int, cache: MemoryCache | None) -> Tensor:
        """The recurrence over all T tokens, from W_0 or from where the cache stands."""
        state, anchor, phase = None, None, 0
        if cache is not None:
            state, anchor, phase = cache.state, cache.anchor, cache.phase
        state = state or initial_state(_wide(self.first), _wide(self.second), batch)
        lengths = segment_lengths(q.shape[1], self.sizes.chunk_size, phase, self.segment_chunks)
        norm = [_wide(p).unsqueeze(1).repeat(batch, 1, 1) for p in (self.scale, self.shift)]
        pieces = zip(
            *(torch.split(x, lengths, dim=1) for x in (q, k, v)),
            *(torch.split(gate, lengths, dim=-1) for gate in gates),
            strict=True,
        )
        recomputes = torch.is_grad_enabled() and len(lengths) > 1
        outputs = []
        for q_, k_, v_, *gate in pieces:
            before, length = state, q_.shape[1]
            arguments = (q_, k_, v_, Gates(*gate), state, *norm, self.sizes.chunk_size, anchor if phase else None)
            # A piece of a chunk is rare, or one of many lengths: not worth a compilation.
            run = partial(run_segment, compiled=self.compiled and length % self.sizes.chunk_size == 0)
            if recomputes:
                output, state = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                output, state = run(*arguments)
            outputs.append(output)
            if phase == 0:
                anchor = before.weights  # of use where this is the last piece and ends inside a chunk
            phase = (phase + length) % self.sizes.chunk_size
        if cache is not None:
            cache.state, cache.anchor, cache.phase = state, anchor, phase
        return torch.cat(outputs, dim=1)


def segment_lengths(length: int, chunk_size: int, phase: int, segment_chunks: int) -> list[int]:
    """`length` tokens after `phase` tokens of a chunk: the rest of that, segments of whole chunks, what is left."""
    opening = min((chunk_size - phase) % chunk_size, length)
    whole = (length - opening) // chunk_size * chunk_size
    largest = segment_chunks * chunk_size
    segments = [min(largest, whole - start) for start in range(0, whole, largest)]
    return [piece for piece in (opening, *segments, length - opening - whole) if piece]


def _behind(front_1P_: Tensor | None, x_BS_: Tensor) -> Tensor:
    """The persistent tokens' values, equal for all sequences, in front of each sequence's own."""
    if front_1P_ is None:
        return x_BS_
    return torch.cat((front_1P_.expand(x_BS_.shape[0], *front_1P_.shape[1:]), x_BS_), dim=1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
