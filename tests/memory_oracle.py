"""Titans token by token, one sequence and one head at a time, the memory's gradient by autograd: what all else equals.

Specification 4.2 and 4.3. The gradient is taken with `create_graph`, so that gradients flow through it as well.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_tlm.plan.shape import ModelShape
from tests.oracle_parts import rms_norm, rotate

EPSILON = 1e-2


def memory(weights: tuple[Tensor, Tensor], x_H: Tensor, scale_H: Tensor, shift_H: Tensor) -> Tensor:
    """f(W; x) = x + scale * norm(W1 gelu(W2 x)) + shift, for weights (W2, W1)."""
    first, second = weights
    hidden = first @ x_H
    out = second @ (0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))))
    normed = (out - out.mean()) / torch.sqrt(((out - out.mean()) ** 2).mean() + EPSILON)
    return x_H + scale_H * normed + shift_H


def recurrence(
    q_TH: Tensor,
    k_TH: Tensor,
    v_TH: Tensor,
    step_2T: Tensor,
    momentum_2T: Tensor,
    forget_2T: Tensor,
    initial: tuple[Tensor, Tensor],
    scale_H: Tensor,
    shift_H: Tensor,
    chunk_size: int,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Outputs [T, H], and W and S (each of both layers) after the last token; gates theta, eta, alpha as they are."""
    weights, momenta = list(initial), [torch.zeros_like(w) for w in initial]
    anchor, outputs = list(initial), []
    for t in range(q_TH.shape[0]):
        if t % chunk_size == 0:
            anchor = [w.clone() for w in weights]
        with torch.enable_grad():
            at = [a if a.requires_grad else a.detach().requires_grad_() for a in anchor]
            surprise = 0.5 * ((memory((at[0], at[1]), k_TH[t], scale_H, shift_H) - v_TH[t]) ** 2).sum()
            gradients = torch.autograd.grad(surprise, at, create_graph=True)
        for i in range(2):
            momenta[i] = momentum_2T[i, t] * momenta[i] - step_2T[i, t] * gradients[i]
            weights[i] = (1 - forget_2T[i, t]) * weights[i] + momenta[i]
        outputs.append(memory((weights[0], weights[1]), q_TH[t], scale_H, shift_H))
    return torch.stack(outputs), weights, momenta


def read_memory(x_BTD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    """[B, T, D], the persistent tokens in front -> what each head's memory says, [B, T, N, H]."""
    batch, length = x_BTD.shape[:2]
    heads, width, taps = shape.num_attention_heads, shape.kv_channels, shape.memory_conv_width

    def stream(name: str) -> Tensor:
        y = x_BTD @ weights[f"memory.{name}.weight"].T
        filters, rows = weights[f"memory.{name}_conv.weight"], []
        for t in range(length):
            terms = [filters[:, i] * y[:, t - taps + 1 + i] for i in range(taps) if t - taps + 1 + i >= 0]
            rows.append(sum(terms))
        filtered = torch.stack(rows, dim=1)  # type: ignore[arg-type]
        return (filtered * torch.sigmoid(filtered)).view(batch, length, heads, width)

    def gate(name: str, head: int) -> Tensor:
        logits = x_BTD @ weights[f"memory.{name}.weight"][head].T + weights[f"memory.{name}.bias"][head]
        return torch.sigmoid(logits).transpose(1, 2)

    q, k, v = (stream(name) for name in "qkv")
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    by_sample = []
    for b in range(batch):
        by_head = []
        for n in range(heads):
            initial = (weights["memory.first"][n], weights["memory.second"][n])
            norm = (weights["memory.scale"][n], weights["memory.shift"][n])
            step = shape.memory_max_step * gate("step", n)[b]
            gates = (step, gate("momentum", n)[b], gate("forget", n)[b])
            output, _, _ = recurrence(
                q[b, :, n], k[b, :, n], v[b, :, n], *gates, initial, *norm, shape.memory_chunk_size
            )
            by_head.append(output)
        by_sample.append(torch.stack(by_head, dim=1))
    return torch.stack(by_sample)


def _behind(x_BSD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    if not shape.memory_persistent_tokens:
        return x_BSD
    return torch.cat((weights["persistent"].expand(x_BSD.shape[0], -1, -1), x_BSD), dim=1)


def lmm(x_BSD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    read = read_memory(_behind(x_BSD, weights, shape), weights, shape)[:, -x_BSD.shape[1] :]
    normed = rms_norm(read, weights["memory_norm.weight"], shape.norm_epsilon).flatten(2)
    return (normed * torch.sigmoid(x_BSD @ weights["z.weight"].T)) @ weights["o.weight"].T


def mag(x_BSD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    front, length, width = shape.memory_persistent_tokens, x_BSD.shape[1], shape.kv_channels
    both = _behind(x_BSD, weights, shape)
    read = read_memory(both, weights, shape)[:, front:]
    heads = []
    for head in range(shape.num_attention_heads):
        group = head // (shape.num_attention_heads // shape.num_query_groups)
        q = both @ weights["q.weight"][head * width : (head + 1) * width].T
        k = both @ weights["k.weight"][group * width : (group + 1) * width].T
        if shape.qk_norm:
            q, k = (
                rms_norm(x, weights[f"{name}_norm.weight"], shape.norm_epsilon)
                for name, x in zip("qk", (q, k), strict=True)
            )
        q, k = rotate(q, shape.rotary_base), rotate(k, shape.rotary_base)
        v = both @ weights["v.weight"][group * width : (group + 1) * width].T
        rows = []
        for t in range(front, front + length):
            seen = [s for s in range(t + 1) if s < front or t - s < shape.attention_window]
            shares = (torch.einsum("bh,bsh->bs", q[:, t], k[:, seen]) / math.sqrt(width)).softmax(-1)
            rows.append(torch.einsum("bs,bsh->bh", shares, v[:, seen]))
        heads.append(torch.stack(rows, dim=1))
    y = rms_norm(torch.stack(heads, dim=2), weights["attention_norm.weight"], shape.norm_epsilon)
    u = rms_norm(read, weights["memory_norm.weight"], shape.norm_epsilon)
    return (y * torch.sigmoid(u)).flatten(2) @ weights["o.weight"].T
