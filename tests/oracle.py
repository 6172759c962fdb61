"""Transformer++ written as plainly as it can be, one head at a time, from whole weights: what all else must equal."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_tlm.plan.shape import ModelShape


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x_BSH: Tensor, base: float) -> Tensor:
    """Each pair (i, i + H/2) as a complex number, turned by position * base^(-2i/H)."""
    length, width = x_BSH.shape[1:]
    half = width // 2
    angles = torch.tensor(
        [[p * base ** (-2 * i / width) for i in range(half)] for p in range(length)], dtype=torch.float64
    )
    turned = torch.complex(x_BSH[..., :half], x_BSH[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(x_BSD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    length, width = x_BSD.shape[1], shape.kv_channels
    outputs = []
    for head in range(shape.num_attention_heads):
        group = head // (shape.num_attention_heads // shape.num_query_groups)
        q = rotate(x_BSD @ weights["q.weight"][head * width : (head + 1) * width].T, shape.rotary_base)
        k = rotate(x_BSD @ weights["k.weight"][group * width : (group + 1) * width].T, shape.rotary_base)
        v = x_BSD @ weights["v.weight"][group * width : (group + 1) * width].T
        scores = q @ k.transpose(1, 2) / math.sqrt(width)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v)
    return torch.cat(outputs, dim=-1) @ weights["o.weight"].T


def mlp(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    gate = x @ weights["gate.weight"].T
    return (gate * torch.sigmoid(gate) * (x @ weights["up.weight"].T)) @ weights["down.weight"].T


def logits(tokens_BS: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    """[B, S] -> [B, S, true vocabulary]."""
    h = weights["embedding.weight"][tokens_BS]
    for layer in range(shape.num_layers):
        for kind in ("mixer", "mlp"):
            prefix = f"layers.{layer}.{kind}."
            own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
            x = rms_norm(h, own["norm.weight"], shape.norm_epsilon)
            h = h + (attention(x, own, shape) if kind == "mixer" else mlp(x, own))
    output = weights["embedding.weight" if shape.tied_embeddings else "head.output.weight"]
    return rms_norm(h, weights["head.norm.weight"], shape.norm_epsilon) @ output.T
