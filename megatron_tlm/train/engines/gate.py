"""Between the norm of a step's gradient and the update that it would make: there an update can be dropped.

DeepSpeed clips and updates in one call, which each ZeRO stage does in a way of its own. All of them end in torch's
optimizer, and know the norm by then: a `step` of that which does nothing leaves weights, masters, moments, counts and
open windows as they were. Where DeepSpeed sees a gradient that is no number it drops the update itself, and the gate
is never asked.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from megatron_tlm.comm.groups import all_reduce_max

# Loss and gradient norm of a step, both finite and equal on all ranks -> whether its update may be made.
Judge = Callable[[float, float], bool]


def accept(loss: float, norm: float) -> bool:
    """The judge that lets every finite step through."""
    return True


def refuse(loss: float, norm: float) -> bool:
    """The judge of a step that is taken only to be looked at."""
    return False


class StepGate:
    """In front of `optimizer.step`; `measure` gives this rank's loss and norm, once all gradients are reduced.

    `judged` is what the judge was given in the last step: to the bit the same on all ranks; None if it was not asked.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, measure: Callable[[], tuple[float, float]]) -> None:
        self._measure, self._step = measure, optimizer.step
        self._judge: Judge | None = None
        self._allowed: bool | None = None
        self.judged: tuple[float, float] | None = None
        optimizer.step = self._pass  # type: ignore[method-assign]

    def close(self, judge: Judge) -> None:
        """Nothing passes until the judge was asked, once per step and on every rank."""
        self._judge, self._allowed, self.judged = judge, None, None

    def open(self) -> bool:
        """Whether the update was made; from here on everything passes."""
        applied, self._judge = bool(self._allowed), None
        return applied

    def _pass(self, closure: Any = None) -> Any:
        """DeepSpeed calls it for all parameters, or for each group, or for each part of one, by ZeRO stage."""
        if self._judge is not None and self._allowed is None:
            self._allowed = self._decide(self._judge)
        return self._step(closure) if self._judge is None or self._allowed else None

    def _decide(self, judge: Judge) -> bool:
        # Of sums that were added up in another order the last bit may differ, and with it what ranks would do next.
        loss, norm = self._measure()
        finite = math.isfinite(loss) and math.isfinite(norm) and norm >= 0
        given = [0.0, loss, norm] if finite else [1.0, -math.inf, -math.inf]
        broken, loss, norm = all_reduce_max(given)
        if broken:
            return False
        self.judged = loss, norm
        return judge(loss, norm)
