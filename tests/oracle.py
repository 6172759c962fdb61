"""Transformer++ written as plainly as it can be, one head at a time, from whole weights: what all else must equal."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_tlm.plan.shape import ModelShape
from tests import memory_oracle
from tests.oracle_parts import rms_norm, rotate


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


def gated_attention(x_BSD: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    """Batch, head and position one by one: a row of scores, its softmax, the mean of values, the gate."""
    batch, length = x_BSD.shape[:2]
    width, rows = shape.kv_channels, []
    shared = shape.num_attention_heads // shape.num_query_groups

    def project(name: str, head: int) -> Tensor:
        heads = x_BSD @ weights[f"{name}.weight"][head * width : (head + 1) * width].T
        if shape.qk_norm and name in "qk":
            heads = rms_norm(heads, weights[f"{name}_norm.weight"], shape.norm_epsilon)
        return rotate(heads, shape.rotary_base) if name in "qk" else heads

    for head in range(shape.num_attention_heads):
        q, k, v = project("q", head), project("k", head // shared), project("v", head // shared)
        size = weights["gate.weight"].shape[0] // shape.num_attention_heads
        columns = weights["gate.weight"][head * size : (head + 1) * size]
        outputs = []
        for b in range(batch):
            for t in range(length):
                scores = torch.stack([q[b, t] @ k[b, s] / math.sqrt(width) for s in range(t + 1)])
                shares = torch.exp(scores - scores.max()) / torch.exp(scores - scores.max()).sum()
                mean = sum(share * v[b, s] for s, share in enumerate(shares))
                outputs.append(mean / (1 + torch.exp(-(columns @ x_BSD[b, t]))))
        rows.append(torch.stack(outputs).view(batch, length, width))
    return torch.cat(rows, dim=-1) @ weights["o.weight"].T


MIXERS = {
    "attention": attention,
    "gated_attention": gated_attention,
    "titans_lmm": memory_oracle.lmm,
    "titans_mag": memory_oracle.mag,
}


def mlp(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    gate = x @ weights["gate.weight"].T
    return (gate * torch.sigmoid(gate) * (x @ weights["up.weight"].T)) @ weights["down.weight"].T


def logits(tokens_BS: Tensor, weights: Mapping[str, Tensor], shape: ModelShape) -> Tensor:
    """[B, S] -> [B, S, true vocabulary]."""
    h = weights["embedding.weight"][tokens_BS]
    mlps = ["mlp"] if shape.cms_levels == 1 else [f"mlp.{level}" for level in range(shape.cms_levels)]
    for layer in range(shape.num_layers):
        for kind in ("mixer", *mlps):
            prefix = f"layers.{layer}.{kind}."
            own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
            x = rms_norm(h, own["norm.weight"], shape.norm_epsilon)
            h = h + (MIXERS[shape.mixer](x, own, shape) if kind == "mixer" else mlp(x, own))
    output = weights["embedding.weight" if shape.tied_embeddings else "head.output.weight"]
    return rms_norm(h, weights["head.norm.weight"], shape.norm_epsilon) @ output.T
