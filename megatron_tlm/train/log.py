"""What a run tells while it goes: a console line per interval, metrics.jsonl, TensorBoard. One rank writes.

metrics.jsonl holds one object per step (step, loss, grad_norm, lr, tokens, seconds, tokens_per_second, ...) and one
per evaluation (step, valid_loss, valid_ppl). A run that goes back to an older step takes back the lines after it; one
that starts anew leaves a former run's files under another name.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.board import SAMPLES_FOLDER, Board
from megatron_tlm.train.engine import StepResult
from megatron_tlm.train.former import set_aside_events, set_aside_logs
from megatron_tlm.train.log_guard import LogGuard, quiet_board_thread
from megatron_tlm.train.metrics import Speed, duration, measure, perplexity, short
from megatron_tlm.train.multi_frequency import LevelReport
from megatron_tlm.train.plot import PLOT_NAME, write_loss_plot

METRICS_NAME = "metrics.jsonl"
CONFIG_NAME = "config.yaml"
BOARD = "TensorBoard"


@dataclass(frozen=True)
class Scale:
    """What turns seconds into speeds: the run's fixed numbers. `peak_tflops` is per device, None if unknown."""

    tokens_per_step: int
    samples_per_step: int
    flops_per_token: int
    num_devices: int
    peak_tflops: float | None
    train_steps: int

    def speed(self, steps: int, seconds: float) -> Speed:
        return measure(
            steps * self.tokens_per_step,
            seconds,
            flops_per_token=self.flops_per_token,
            num_devices=self.num_devices,
            peak=self.peak_tflops,
        )


@dataclass(frozen=True)
class StepReport:
    """One finished step; `tokens` and `samples` count from the start of the run, `step` from 1.

    `wait_seconds` of its `seconds` it waited for data; `sources` are the tokens trained on by corpus, where counted;
    `scalars` what watchers add, by name.
    """

    step: int
    samples: int
    tokens: int
    result: StepResult
    learning_rate: float
    seconds: float
    wait_seconds: float = 0.0
    sources: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


class RunLog(Protocol):
    """Where the loop tells what happened."""

    def say(self, text: str) -> None: ...

    def step(self, report: StepReport) -> None: ...

    def evaluation(self, step: int, samples: int, loss: float) -> None: ...

    def close(self) -> None: ...


class SilentLog:
    """For all ranks but the one that writes."""

    def say(self, text: str) -> None:
        return

    def step(self, report: StepReport) -> None:
        return

    def evaluation(self, step: int, samples: int, loss: float) -> None:
        return

    def close(self) -> None:
        return


@dataclass
class _Interval:
    """The steps since the last console line."""

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    wait_seconds: float = 0.0


class WritingLog:
    """Console, files and TensorBoard of one run that starts after `first_step` finished ones."""

    def __init__(
        self, config: LoggingConfig, scale: Scale, first_step: int, resolved_config: str, *, first_samples: int = 0
    ) -> None:
        self._config, self._scale = config, scale
        self._interval = _Interval()
        self._guard, self._board_thread = LogGuard(self.say), ExitStack()
        self._ratios: dict[int, float] = {}
        self._metrics: TextIO | None = None
        self._board: Board | None = None
        self._folder = Path(config.log_dir) if config.log_dir else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            moved = None if first_step else set_aside_logs(self._folder, (METRICS_NAME, CONFIG_NAME, PLOT_NAME))
            if moved is not None:
                self.say(moved)
            (self._folder / CONFIG_NAME).write_text(resolved_config, encoding="utf-8")
            take_back(self._folder / METRICS_NAME, first_step)
            self._metrics = (self._folder / METRICS_NAME).open("a", encoding="utf-8", buffering=1)
        board = config.tensorboard_dir or (self._folder / "tensorboard" if self._folder else None)
        if board is not None:
            if not first_step:
                set_aside_events(Path(board), SAMPLES_FOLDER)
            self._board_thread.enter_context(quiet_board_thread())
            self._board = Board(Path(board), first_step, first_samples)

    def say(self, text: str) -> None:
        # The console may be a file, on the disk that is full.
        with suppress(OSError):
            print(text, flush=True)

    def step(self, report: StepReport) -> None:
        speed = self._scale.speed(1, report.seconds)
        self._interval.losses.append(report.result.loss)
        self._interval.seconds += report.seconds
        self._interval.wait_seconds += report.wait_seconds
        moved = {level.level: level.update_ratio for level in report.result.levels if level.update_ratio is not None}
        self._ratios |= moved
        self._write_json(report, speed)
        self._write_scalars(
            report.step,
            report.samples,
            {
                "lm loss": report.result.loss,
                "lm loss ppl": perplexity(report.result.loss),
                "learning-rate": report.learning_rate,
                "grad-norm": report.result.grad_norm,
                "batch-size": self._scale.samples_per_step,
                "world-size": self._scale.num_devices,
                "iteration-time": report.seconds,
                "throughput": speed.tflops_per_device,
                "tokens-per-second": speed.tokens_per_second,
                "data-wait-share": report.wait_seconds / max(report.seconds, 1e-9),
                **{f"tokens/{Path(source).name}": float(tokens) for source, tokens in report.sources.items()},
                **{name: value for level in report.result.levels for name, value in level_scalars(level)},
                **report.scalars,
            },
        )
        if report.step % self._config.log_interval == 0 or report.step == self._scale.train_steps:
            self.say(self._line(report))
            for level in report.result.levels:
                self.say(level_line(level, self._ratios.get(level.level)))
            self._interval = _Interval()

    def evaluation(self, step: int, samples: int, loss: float) -> None:
        self.say(f"validation at step {step} | loss {loss:.4f} | ppl {perplexity(loss):.2f}")
        self._append({"step": step, "samples": samples, "valid_loss": loss, "valid_ppl": perplexity(loss)})
        scalars = {"lm loss validation": loss, "lm loss validation ppl": perplexity(loss)}
        self._write_scalars(step, samples, scalars)

    def close(self) -> None:
        """Closes the files and draws the loss."""
        if self._metrics is not None and self._folder is not None:
            metrics, plot = self._folder / METRICS_NAME, self._folder / PLOT_NAME
            self._guard.close(METRICS_NAME, self._metrics.close)
            self._guard.close(PLOT_NAME, lambda: write_loss_plot(metrics, plot))
        if self._board is not None:
            self._guard.close(BOARD, self._board.close)
        self._board_thread.close()

    def _line(self, report: StepReport) -> str:
        """Loss and speed are means over the interval, lr and gradient norm are the step's."""
        steps = len(self._interval.losses)
        loss = sum(self._interval.losses) / steps
        speed = self._scale.speed(steps, self._interval.seconds)
        left = (self._scale.train_steps - report.step) * self._interval.seconds / steps
        width = len(str(self._scale.train_steps))
        parts = [
            f"iteration {report.step:{width}d}/{self._scale.train_steps}",
            f"loss {loss:.4f}",
            f"ppl {perplexity(loss):.2f}",
            f"lr {report.learning_rate:.3e}",
            f"grad norm {report.result.grad_norm:.3f}",
            f"{short(speed.tokens_per_second)} tokens/s",
            f"{speed.tflops_per_device:.3g} TFLOP/s per device",
            *([f"MFU {100 * speed.mfu:.1f} %"] if speed.mfu is not None else []),
            f"{1000 * self._interval.seconds / steps:.0f} ms/step",
            f"data wait {100 * self._interval.wait_seconds / max(self._interval.seconds, 1e-9):.1f} %",
            f"ETA {duration(left)}",
        ]
        return " | ".join(parts)

    def _write_json(self, report: StepReport, speed: Speed) -> None:
        self._append(
            {
                "step": report.step,
                "loss": report.result.loss,
                "ppl": perplexity(report.result.loss),
                "grad_norm": report.result.grad_norm,
                "lr": report.learning_rate,
                "samples": report.samples,
                "tokens": report.tokens,
                "seconds": report.seconds,
                "data_wait_seconds": report.wait_seconds,
                **({"tokens_by_source": dict(report.sources)} if report.sources else {}),
                "tokens_per_second": speed.tokens_per_second,
                "tflops_per_device": speed.tflops_per_device,
                "mfu": speed.mfu,
                **report.scalars,
                **({"levels": [asdict(level) for level in report.result.levels]} if report.result.levels else {}),
            }
        )

    def _append(self, record: dict[str, Any]) -> None:
        if self._metrics is not None:
            # JSON has no infinity, and a perplexity can be it.
            finite = {key: value if _is_finite(value) else None for key, value in record.items()}
            line, write = json.dumps(finite) + "\n", self._metrics.write
            self._guard.write(METRICS_NAME, lambda: write(line))

    def _write_scalars(self, step: int, samples: int, scalars: dict[str, float]) -> None:
        if self._board is not None:
            board = self._board
            self._guard.write(BOARD, lambda: board.scalars(step, samples, scalars))


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


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


def take_back(metrics: Path, last_step: int) -> None:
    """Drops the lines of later steps, which the run is about to take again, and a line that a kill cut short."""
    if not metrics.exists():
        return
    kept = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("step", 0) <= last_step:
            kept.append(line + "\n")
    aside = metrics.with_name(f".{metrics.name}.new")
    aside.write_text("".join(kept), encoding="utf-8")
    os.replace(aside, metrics)
