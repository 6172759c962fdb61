"""Which steps are bad, what becomes of them, and when there were too many.

A loss or gradient norm that is not finite is always bad. One that is finite is a spike where it lies `spike_sigmas`
standard deviations above the mean of the last accepted steps, as in OLMo-core's SkipStepOptimizer. All that this knows
is kept in checkpoints, so that a resumed run judges as one that was never stopped.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.config.resilience import OnNonfinite, OnSpike, ResilienceConfig

AMONG = 1000  # batches in which `bad_step_limit` may be reached
# In a loss that has come to rest any step would be a spike.
LEAST_DEVIATION = 1e-3  # of the mean
_LOSSES, _NORMS, _BAD = "recent_losses", "recent_grad_norms", "bad_batches"


@dataclass(frozen=True)
class Verdict:
    """Why a step is bad, and what its kind is to be met with."""

    cause: str
    action: OnNonfinite | OnSpike


class StepJudge:
    """Called with loss and norm before an update, it says whether that may be made; equal on all ranks."""

    def __init__(self, config: ResilienceConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.spike_window)
        self._norms: deque[float] = deque(maxlen=config.spike_window)
        self._bad: list[int] = []

    def __call__(self, loss: float, norm: float) -> bool:
        verdict = self.verdict(loss, norm)
        return verdict is None or verdict.action == "tell"

    def verdict(self, loss: float, norm: float) -> Verdict | None:
        """None for a step like any other."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            cause = f"loss = {loss:g} with gradient norm {norm:g} is not finite"
            return Verdict(cause, self._config.on_nonfinite)
        if self._config.on_spike == "ignore":
            return None
        for name, value, before in (("loss", loss, self._losses), ("gradient norm", norm, self._norms)):
            bound = self._bound(before)
            if value > bound:
                cause = (
                    f"{name} = {value:g} is above {bound:g}, {self._config.spike_sigmas:g} standard deviations over "
                    f"the mean of the last {len(before)} steps"
                )
                return Verdict(cause, self._config.on_spike)
        return None

    def _bound(self, before: Sequence[float]) -> float:
        if len(before) < self._config.spike_window // 2:
            return math.inf
        mean = fmean(before)
        return mean + self._config.spike_sigmas * max(pstdev(before, mean), LEAST_DEVIATION * abs(mean))

    def accepted(self, loss: float, norm: float) -> None:
        """A step that was taken, to judge later ones by."""
        self._losses.append(loss)
        self._norms.append(norm)

    def dropped(self, batch: int) -> int:
        """A step that was not, by the number of its global batch in the order of the data; how many there were."""
        self._bad = [other for other in self._bad if other > batch - AMONG] + [batch]
        return len(self._bad)

    @property
    def too_many(self) -> bool:
        return len(self._bad) > self._config.bad_step_limit

    def facts(self) -> dict[str, Scalar]:
        """For a checkpoint."""
        if self._config.on_spike == "ignore":
            return {_BAD: _text(self._bad)} if self._bad else {}
        return {_LOSSES: _text(self._losses), _NORMS: _text(self._norms), _BAD: _text(self._bad)}

    def restore(self, facts: Mapping[str, Scalar]) -> None:
        """As it was when a checkpoint was saved; bad steps since then stay known."""
        for values, name in ((self._losses, _LOSSES), (self._norms, _NORMS)):
            values.clear()
            values.extend(float(word) for word in str(facts.get(name, "")).split())
        self._bad = sorted({*self._bad, *(int(word) for word in str(facts.get(_BAD, "")).split())})


def _text(values: Sequence[float]) -> str:
    return " ".join(map(repr, values))
