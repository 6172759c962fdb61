"""Norm, MLP, and the memory of Titans (arXiv:2501.00663): per head a small MLP that learns while it reads.

    f(W; x) = x + scale * norm(W1 gelu(W2 x)) + shift        g_t = gradient of 1/2 |f(A; k_t) - v_t|^2
    S_t = eta_t S_{t-1} - theta_t g_t        W_t = (1 - alpha_t) W_{t-1} + S_t        o_t = f(W_t; q_t)

A are the weights W with which t's chunk began, so a chunk is a few matrix products: all its W_t are sums over the
tokens before, and a gradient is an outer product that is never formed. No autograd is needed; all is float32 or wider.

Shapes: B batch, T tokens, n heads, H their width, m hidden width of the memory, C tokens of a chunk.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear(config, rows):
    return nn.Linear(config.hidden_size, rows, bias=False)


class TlmRMSNorm(nn.Module):
    """Over the last dim; a weight [n, H] is one for each head."""

    def __init__(self, config, *sizes):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*sizes))
        self.epsilon = config.rms_norm_eps

    def forward(self, x):
        x = wide(x)
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight).to(self.weight.dtype)


class TlmMLP(nn.Module):
    def __init__(self, config, width):
        super().__init__()
        self.norm = TlmRMSNorm(config, config.hidden_size)
        self.gate_proj, self.up_proj = linear(config, width), linear(config, width)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, h):
        n = self.norm(h)
        return h + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))


class TlmFilter(nn.Module):
    """A causal filter per channel."""

    def __init__(self, channels, width):
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, width), 1 / width))

    def forward(self, x, past):
        """[B, T, c] behind the w - 1 inputs before, or zeros -> [B, T, c], and the last w - 1 inputs."""
        channels, width = self.weight.shape
        x = torch.cat((x.new_zeros(x.shape[0], width - 1, channels) if past is None else past, x), dim=1)
        return F.conv1d(x.mT, self.weight.unsqueeze(1), groups=channels).mT, x[:, x.shape[1] - width + 1 :]


class TlmGate(nn.Module):
    """Logits per head and layer of the memory, [B, n, 2, T]."""

    def __init__(self, config, bias):
        super().__init__()
        sizes = (config.num_attention_heads, 2)
        self.weight = nn.Parameter(torch.randn(*sizes, config.hidden_size) * config.initializer_range)
        self.bias = nn.Parameter(torch.full(sizes, bias))

    def forward(self, x):
        logits = wide(F.linear(x, self.weight.flatten(0, 1))).unflatten(-1, self.bias.shape) + wide(self.bias)
        return logits.permute(0, 2, 3, 1)


class TlmMemory(nn.Module):
    """`first` (W2) and `second` (W1) are the weights that every sequence begins with."""

    def __init__(self, config):
        super().__init__()
        heads, head, inner = config.num_attention_heads, config.head_dim, config.memory_expansion * config.head_dim
        self.chunk, self.max_step, self.head_width = config.memory_chunk_size, config.memory_max_step, head
        for name in "qkv":
            self.add_module(f"{name}_proj", linear(config, heads * head))
            self.add_module(f"{name}_conv", TlmFilter(heads * head, config.memory_conv_width))
        self.step, self.momentum, self.forget = (TlmGate(config, bias) for bias in (0.0, 1.0, -6.0))
        self.first = nn.Parameter(torch.randn(heads, inner, head))
        self.second = nn.Parameter(torch.randn(heads, head, inner) * inner**-0.5)
        self.scale, self.shift = nn.Parameter(torch.ones(heads, head)), nn.Parameter(torch.zeros(heads, head))

    def forward(self, x, position, state):
        """[B, T, D], the first of them after `position` others -> [B, T, n, H]; `state` is read and written."""
        streams = []
        for name in "qkv":
            y, past = self.get_submodule(f"{name}_conv")(self.get_submodule(f"{name}_proj")(x), state.get(name))
            state[name] = past
            streams.append(F.silu(wide(y)).unflatten(-1, (-1, self.head_width)).transpose(1, 2))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in streams[:2])
        step, momentum, forget = self.step(x), self.momentum(x), self.forget(x)
        gates = self.max_step * torch.sigmoid(step), F.logsigmoid(momentum), F.logsigmoid(-forget)
        if "W2" not in state:
            for name, weights in (("2", self.first), ("1", self.second)):
                state["W" + name] = wide(weights).expand(x.shape[0], -1, -1, -1)
                state["S" + name] = torch.zeros_like(state["W" + name])
        outputs, start, norm = [], 0, (wide(self.scale).unsqueeze(1), wide(self.shift).unsqueeze(1))
        while start < x.shape[1]:
            phase = (position + start) % self.chunk
            if phase == 0:
                state["A2"], state["A1"] = state["W2"], state["W1"]
            stop = min(start + self.chunk - phase, x.shape[1])
            tokens = (y[:, :, start:stop] for y in (q, k, streams[2]))
            outputs.append(_read_chunk(*tokens, *(gate[..., start:stop] for gate in gates), state, *norm))
            start = stop
        return torch.cat(outputs, dim=2).transpose(1, 2)


def _read_chunk(q, k, v, step, log_momentum, log_kept, state, scale, shift):
    """Tokens [B, n, C, H] of one chunk and their gates [B, n, 2, C] -> what is read, [B, n, C, H]."""
    (p2, e2, *mix2), (p1, e1, *mix1) = (
        _coefficients(step[:, :, i], log_momentum[:, :, i], log_kept[:, :, i]) for i in (0, 1)
    )
    hidden = k @ state["A2"].mT
    active, share = F.gelu(hidden), 0.5 * (1 + torch.erf(hidden * math.sqrt(0.5)))
    normed, spread = _normalised(active @ state["A1"].mT)
    error = (k + scale * normed + shift - v) * scale
    d_out = spread * (error - error.mean(-1, keepdim=True) - normed * (error * normed).mean(-1, keepdim=True))
    d_hidden = (d_out @ state["A1"]) * (share + hidden * torch.exp(-0.5 * hidden.square()) / math.sqrt(2 * math.pi))
    read = F.gelu(_mixed(q, state["W2"], state["S2"], *mix2) - (p2 * (q @ k.mT)) @ d_hidden)
    output, _ = _normalised(_mixed(read, state["W1"], state["S1"], *mix1) - (p1 * (read @ active.mT)) @ d_out)
    for name, p, e, (kept, moved, kept_momentum), d, x in (
        ("2", p2, e2, mix2, d_hidden, k),
        ("1", p1, e1, mix1, d_out, active),
    ):
        last, momentum = (y[..., -1:, None] for y in (kept, kept_momentum))
        weights, sums = state["W" + name], state["S" + name]
        state["W" + name] = last * weights + moved[..., -1:, None] * sums - (d * p[..., -1, :, None]).mT @ x
        state["S" + name] = momentum * sums - (d * e[..., -1, :, None]).mT @ x
    return q + scale * output + shift


def _coefficients(step, log_momentum, log_kept):
    """What each token's gradient [C, C] weighs in W_t and S_t; what W and S weigh in W_t, and S in S_t, [C] each."""
    momentum, kept = log_momentum.cumsum(-1), log_kept.cumsum(-1)
    in_sums, decays = _decay(momentum) * step.unsqueeze(-2), _decay(kept)
    return decays @ in_sums, in_sums, kept.exp(), (decays @ momentum.exp().unsqueeze(-1)).squeeze(-1), momentum.exp()


def _decay(sums):
    later = torch.ones(sums.shape[-1], sums.shape[-1], dtype=torch.bool, device=sums.device).triu(1)
    return (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()


def _mixed(x, weights, sums, kept, moved, _):
    return kept.unsqueeze(-1) * (x @ weights.mT) + moved.unsqueeze(-1) * (x @ sums.mT)


def _normalised(x):
    centred = x - x.mean(-1, keepdim=True)
    spread = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-2)
    return centred * spread, spread
