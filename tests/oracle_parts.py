"""What the oracles share."""

import torch
from torch import Tensor


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
