"""The lines a person reads while a run goes."""

from collections.abc import Iterator

from megatron_tlm.train.engines.multi_frequency import LevelReport
from megatron_tlm.train.logs.metrics import duration, flop_rate, perplexity, short
from megatron_tlm.train.logs.step_report import Scale, StepReport


class Interval:
    """The steps since the last line."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._losses: list[float] = []
        self._seconds = self._wait_seconds = 0.0
        self._ratios: dict[int, float] = {}

    def add(self, report: StepReport) -> None:
        self._losses.append(report.result.loss)
        self._seconds += report.seconds
        self._wait_seconds += report.wait_seconds
        self._ratios |= {
            level.level: level.update_ratio for level in report.result.levels if level.update_ratio is not None
        }

    def lines(self, report: StepReport) -> Iterator[str]:
        """The line of the interval that ends with `report`, one for each level of a memory; a new interval begins."""
        yield self._line(report)
        for level in report.result.levels:
            yield level_line(level, self._ratios.get(level.level))
        self._losses = []
        self._seconds = self._wait_seconds = 0.0

    def _line(self, report: StepReport) -> str:
        """Loss and speed are means over the interval, lr and gradient norm are the step's."""
        steps = len(self._losses)
        loss = sum(self._losses) / steps
        speed = self._scale.speed(steps, self._seconds)
        left = (self._scale.train_steps - report.step) * self._seconds / steps
        width = len(str(self._scale.train_steps))
        parts = [
            f"iteration {report.step:{width}d}/{self._scale.train_steps}",
            f"loss {loss:.4f}",
            f"ppl {perplexity(loss):.2f}",
            f"lr {report.learning_rate:.3e}",
            f"grad norm {report.result.grad_norm:.3f}",
            f"{short(speed.tokens_per_second)} tokens/s",
            f"{flop_rate(speed.tflops_per_device)} per device",
            *([f"MFU {100 * speed.mfu:.1f} %"] if speed.mfu is not None else []),
            f"{1000 * self._seconds / steps:.0f} ms/step",
            f"data wait {100 * self._wait_seconds / max(self._seconds, 1e-9):.1f} %",
            f"ETA {duration(left)}",
        ]
        return " | ".join(parts)


def level_scalars(report: LevelReport) -> Iterator[tuple[str, float]]:
    """A level's curves; a level that is not learning shows as one whose update ratio has fallen to nothing."""
    yield f"cms level {report.level} grad-norm", report.grad_norm
    yield f"cms level {report.level} updates", report.updates
    if report.update_ratio is not None:
        yield f"cms level {report.level} update ratio", report.update_ratio


def level_line(report: LevelReport, last_ratio: float | None) -> str:
    """`last_ratio` is that of the last update seen, perhaps some steps ago."""
    told = "no update seen yet" if last_ratio is None else f"last update {last_ratio:.2e} of its weights"
    return (
        f"  level {report.level}, every {report.period} steps | grad norm {report.grad_norm:.2e} | "
        f"{report.updates} updates | {told}"
    )
