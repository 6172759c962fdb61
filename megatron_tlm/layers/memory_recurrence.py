"""The recurrence of a neural memory (Titans, arXiv:2501.00663), a chunk of C tokens at a time.

A memory is a two-layer MLP with a residual, f(W; x) = x + scale * norm(W1 gelu(W2 x)) + shift. Its weights W learn
while the sequence is read, by gradient descent with momentum S and forgetting:

    g_t = gradient of 1/2 |f(A; k_t) - v_t|^2, taken at the weights A with which the chunk began
    S_t = eta_t S_{t-1} - theta_t g_t        W_t = (1 - alpha_t) W_{t-1} + S_t        o_t = f(W_t; q_t)

Within a chunk all W_t are sums over the tokens before, W_t = b_t W + c_t S - sum_j P_{t,j} g_j, and every g_j is an
outer product of two vectors: so a chunk is a few matrix products, its weights are never written out token by token, and
nothing in it needs autograd to run forward. Chunks follow each other: g is not linear in A.

Decays are exponents of differences of summed logarithms, masked before exp: quotients of products would be 0 / 0.
All is float32 (float64 for float64): a weight in bfloat16 would not feel steps of a hundredth.

Shapes: M microbatch x this rank's heads, C tokens of a chunk, G chunks of a segment, H head width, m hidden width of
the memory, L = 2 its layers (first W2, then W1); a state holds W and S in one tensor, [M, 2, m, H] and [M, 2, H, m].
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Far above the usual 1e-6: the norm's backward divides by the spread of W1 gelu(W2 x), which forgetting makes tiny.
EPSILON = 1e-2


class Gates(NamedTuple):
    """Per token and layer, [M, L, T]: step size theta, log of the momentum eta, log of what is kept, 1 - alpha."""

    step: Tensor
    log_momentum: Tensor
    log_kept: Tensor


class Weights(NamedTuple):
    """W2 [M, m, H] and W1 [M, H, m]: what a chunk's gradients are taken at."""

    first: Tensor
    second: Tensor


class State(NamedTuple):
    """W and S of both layers after some token."""

    first_M2mH: Tensor
    second_M2Hm: Tensor

    @property
    def weights(self) -> Weights:
        return Weights(self.first_M2mH[:, 0], self.second_M2Hm[:, 0])


class Coefficients(NamedTuple):
    """How chunk-start values and gradients weigh at each token, for one layer and chunk.

    `mixing` [M, C, 2]: b and c. `gradients` [M, C, C]: P. `kept` [M, 2, 1, 1] and `moved` [M, 2, 1, 1] carry W and S to
    the end of the chunk, `written` [M, 2, C, 1] are the last rows of P and of its counterpart for S.
    """

    mixing: Tensor
    gradients: Tensor
    kept: Tensor
    moved: Tensor
    written: Tensor


def initial_state(first_nmH: Tensor, second_nHm: Tensor, batch: int) -> State:
    """W_0 for every sequence of a batch, and no momentum."""
    states = (
        torch.stack((weights, torch.zeros_like(weights)), dim=1).expand(batch, -1, -1, -1, -1).flatten(0, 1)
        for weights in (first_nmH, second_nHm)
    )
    return State(*states)


def run_segment(
    q_MTH: Tensor,
    k_MTH: Tensor,
    v_MTH: Tensor,
    gates: Gates,
    state: State,
    scale_M1H: Tensor,
    shift_M1H: Tensor,
    chunk_size: int,
    anchor: Weights | None = None,
    *,
    compiled: bool = False,
) -> tuple[Tensor, State]:
    """Outputs [M, T, H] and the state after T tokens: whole chunks, or less than one.

    `anchor`: where the T tokens continue a chunk, the weights with which it began. `compiled` fuses a chunk's kernels.
    """
    run_chunk = compiled_chunk() if compiled else _run_chunk
    length = min(chunk_size, q_MTH.shape[1])
    firsts, seconds = _coefficients(gates, length)
    chunks = (x.reshape(x.shape[0], -1, length, x.shape[2]).unbind(1) for x in (q_MTH, k_MTH, v_MTH))
    outputs = []
    for q, k, v, first, second in zip(*chunks, firsts, seconds, strict=True):
        output, state = run_chunk(q, k, v, first, second, state, anchor, scale_M1H, shift_M1H)
        outputs.append(output)
    return torch.cat(outputs, dim=1), state


def _coefficients(gates: Gates, length: int) -> tuple[list[Coefficients], list[Coefficients]]:
    """Of every chunk, for the first and the second layer; all chunks at once, apart from being handed out."""
    step, log_momentum, log_kept = (gate.reshape(*gate.shape[:2], -1, length) for gate in gates)  # [M, L, G, C]
    momentum_sum, kept_sum = log_momentum.cumsum(-1), log_kept.cumsum(-1)
    momentum_MLGCC, kept_MLGCC = _decay(momentum_sum), _decay(kept_sum)
    written_S = momentum_MLGCC * step.unsqueeze(-2)
    product = kept_MLGCC @ torch.cat((written_S, momentum_sum.exp().unsqueeze(-1)), dim=-1)
    written_W, from_S = product[..., :-1], product[..., -1]
    from_W, nothing = kept_sum.exp(), torch.zeros_like(from_S[..., -1])
    whole = (
        torch.stack((from_W, from_S), dim=-1),
        written_W,
        torch.stack((from_W[..., -1], momentum_sum[..., -1].exp()), dim=-1)[..., None, None],
        torch.stack((from_S[..., -1], nothing), dim=-1)[..., None, None],
        torch.stack((written_W[..., -1, :], written_S[..., -1, :]), dim=-2).unsqueeze(-1),
    )
    first, second = (
        [Coefficients(*chunk) for chunk in zip(*(tensor[:, layer].unbind(1) for tensor in whole), strict=True)]
        for layer in range(2)
    )
    return first, second


def _decay(sums: Tensor) -> Tensor:
    """[..., C] of summed logarithms -> [..., C, C], exp(sum_t - sum_j) for j <= t, else 0."""
    length = sums.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=sums.device).triu(1)
    return (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()


def _run_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Coefficients,
    second: Coefficients,
    state: State,
    anchor: Weights | None,
    scale: Tensor,
    shift: Tensor,
) -> tuple[Tensor, State]:
    """[M, C, H] three times -> the outputs [M, C, H], and the state after the chunk."""
    at = anchor or state.weights
    hidden = k @ at.first.mT
    share = 0.5 * (1 + torch.erf(hidden * math.sqrt(0.5)))
    active = hidden * share
    normed, spread = _normalise(active @ at.second.mT)
    error = (k + scale * normed + shift - v) * scale
    d_out = spread * (error - error.mean(-1, keepdim=True) - normed * (error * normed).mean(-1, keepdim=True))
    density = torch.exp(-0.5 * hidden.square()) * (1 / math.sqrt(2 * math.pi))
    d_hidden = (d_out @ at.second) * (share + hidden * density)

    read = _mixed(q @ state.first_M2mH.flatten(1, 2).mT, first)
    read = F.gelu(torch.baddbmm(read, first.gradients * (q @ k.mT), d_hidden, alpha=-1))
    scores = second.gradients * (read @ active.mT)
    read, _ = _normalise(
        torch.baddbmm(_mixed(read @ state.second_M2Hm.flatten(1, 2).mT, second), scores, d_out, alpha=-1)
    )
    output = q + scale * read + shift
    return output, State(
        _carried(state.first_M2mH, first, d_hidden, k), _carried(state.second_M2Hm, second, d_out, active)
    )


@cache
def compiled_chunk() -> Callable[..., tuple[Tensor, State]]:
    """A chunk's body through torch.compile: built at its first call, once per shape, and kept."""
    compiled: Callable[..., tuple[Tensor, State]] = torch.compile(_run_chunk, dynamic=False)
    return compiled


def _mixed(both_MC_: Tensor, layer: Coefficients) -> Tensor:
    """What W and S answer, side by side in the last dim, weighed by b and c."""
    return (both_MC_.view(*both_MC_.shape[:2], 2, -1) * layer.mixing.unsqueeze(-1)).sum(-2)


def _carried(state: Tensor, layer: Coefficients, d_out: Tensor, given: Tensor) -> Tensor:
    """W and S after the chunk: decayed, S added to W, and the chunk's outer products written into both."""
    decayed = torch.addcmul(state * layer.kept, state[:, 1:], layer.moved)
    weighed = (d_out.unsqueeze(1) * layer.written).transpose(1, 2).flatten(2)  # [M, C, 2 x rows]
    return torch.baddbmm(decayed.flatten(1, 2), weighed.mT, given, alpha=-1).view_as(decayed)


def _normalise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean and unit variance over the last dim, and what it was multiplied by."""
    centred = x - x.mean(-1, keepdim=True)
    spread = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    return centred * spread, spread
