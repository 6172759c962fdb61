"""The multi-frequency optimizer as plainly as it can be: every step's gradients are kept, and looked at again.

No class of torch's, no state but lists: at each boundary the window's mean is taken (mean), or the window's
displacements are worked out anew from all gradients so far (sum).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """One parameter's constants."""

    period: int
    decay: float
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8


@dataclass
class History:
    """One parameter: its value, and every gradient and learning rate so far."""

    value: Tensor
    rule: Rule
    update: str = "mean"
    gradients: list[Tensor] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def step(self, gradient: Tensor, rate: float) -> None:
        self.gradients.append(gradient.clone())
        self.rates.append(rate)
        taken, period = len(self.gradients), self.rule.period
        if taken % period:
            return
        if self.update == "mean":
            self.value = self.value - rate * self._displacement(self._means(), self.value)
        else:
            frozen = self.value
            for step in range(taken - period, taken):
                self.value = self.value - self.rates[step] * self._displacement(self.gradients[: step + 1], frozen)

    def moments(self) -> tuple[Tensor, Tensor]:
        return self._moments(self._means() if self.update == "mean" else self.gradients)

    def window(self) -> Tensor:
        """What is gathered of the open window."""
        taken, period = len(self.gradients), self.rule.period
        start = taken // period * period
        total = torch.zeros_like(self.value)
        for step in range(start, taken):
            if self.update == "mean":
                total = total + self.gradients[step]
            else:
                total = total + self.rates[step] * self._displacement(self.gradients[: step + 1], self.value)
        return total

    def _means(self) -> list[Tensor]:
        period = self.rule.period
        whole = len(self.gradients) // period
        return [sum(self.gradients[i * period : (i + 1) * period]) / period for i in range(whole)]  # type: ignore[misc]

    def _moments(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        (b1, b2), n = self.rule.betas, len(gradients)
        first, second = torch.zeros_like(self.value), torch.zeros_like(self.value)
        for i, g in enumerate(gradients):
            first = first + (1 - b1) * b1 ** (n - 1 - i) * g
            second = second + (1 - b2) * b2 ** (n - 1 - i) * g * g
        return first, second

    def _displacement(self, gradients: Sequence[Tensor], weights: Tensor) -> Tensor:
        (b1, b2), n = self.rule.betas, len(gradients)
        first, second = self._moments(gradients)
        adam = (first / (1 - b1**n)) / ((second / (1 - b2**n)).sqrt() + self.rule.epsilon)
        return adam + self.rule.decay * weights
