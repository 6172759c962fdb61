"""What a run tells while it goes: console lines, metrics.jsonl, events.jsonl, TensorBoard. One rank writes.

metrics.jsonl holds one object per step (step, loss, grad_norm, lr, tokens, seconds, tokens_per_second, ...) and one
per evaluation (step, valid_loss, valid_ppl; of a set with a name, valid_loss/NAME and valid_ppl/NAME). A run that goes
back to an older step takes back the lines after it; one that starts anew leaves a former run's files under another
name. `train.events` says what events.jsonl holds.
"""

from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Any, Protocol

import yaml

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.logs.board import SAMPLES_FOLDER, Board
from megatron_tlm.train.logs.console import Interval, level_scalars
from megatron_tlm.train.logs.events import EVENTS_NAME, EventKind
from megatron_tlm.train.logs.log_guard import LogGuard, quiet_board_thread
from megatron_tlm.train.logs.metrics import Speed, perplexity
from megatron_tlm.train.logs.plot import PLOT_NAME, write_loss_plot
from megatron_tlm.train.logs.records import Lost, Records, take_back
from megatron_tlm.train.logs.step_report import Scale as Scale
from megatron_tlm.train.logs.step_report import StepReport as StepReport
from megatron_tlm.train.logs.wandb_board import WandbBoard
from megatron_tlm.train.saving.former import set_aside_events, set_aside_logs

METRICS_NAME = "metrics.jsonl"
CONFIG_NAME = "config.yaml"
OWN_FILES = (METRICS_NAME, CONFIG_NAME, PLOT_NAME, EVENTS_NAME)
BOARD, WANDB = "TensorBoard", "Weights & Biases"


class RunLog(Protocol):
    """Where the loop tells what happened."""

    def say(self, text: str) -> None: ...

    def step(self, report: StepReport) -> None: ...

    def evaluation(self, step: int, samples: int, loss: float, name: str = "") -> None:
        """Of the validation set, or of a further one that has a name."""

    def event(self, kind: EventKind, step: int, **facts: Any) -> None:
        """What happened beside the steps; see `train.events` for kinds and facts, which are what JSON holds."""

    def go_back(self, step: int, samples: int) -> None:
        """What was told of steps after this one is taken back: the run is about to take them again."""

    def close(self) -> None: ...


class SilentLog:
    """For all ranks but the one that writes."""

    def say(self, text: str) -> None:
        return

    def step(self, report: StepReport) -> None:
        return

    def evaluation(self, step: int, samples: int, loss: float, name: str = "") -> None:
        return

    def event(self, kind: EventKind, step: int, **facts: Any) -> None:
        return

    def go_back(self, step: int, samples: int) -> None:
        return

    def close(self) -> None:
        return


class WritingLog:
    """Console, files and TensorBoard of one run that starts after `first_step` finished ones.

    One that was `restarted` by its launcher goes on with its own files even where it has no step to go on from.
    """

    def __init__(
        self,
        config: LoggingConfig,
        scale: Scale,
        first_step: int,
        resolved_config: str,
        *,
        first_samples: int = 0,
        restarted: bool = False,
    ) -> None:
        self._config, self._scale = config, scale
        self._interval = Interval(scale)
        self._guard, self._board_thread = LogGuard(self.say), ExitStack()
        self._metrics: Records | None = None
        self._events: Records | None = None
        self.lost = Lost()
        self._board: Board | None = None
        self._folder = Path(config.log_dir) if config.log_dir else None
        anew = not first_step and not restarted
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            if anew and (moved := set_aside_logs(self._folder, OWN_FILES)):
                self.say(moved)
            (self._folder / CONFIG_NAME).write_text(resolved_config, encoding="utf-8")
            self.lost = take_back(self._folder / METRICS_NAME, first_step)
            self._metrics = Records(self._folder / METRICS_NAME, self._guard)
            self._events = Records(self._folder / EVENTS_NAME, self._guard)
        board = config.tensorboard_dir or (self._folder / "tensorboard" if self._folder else None)
        if board is not None:
            if anew:
                set_aside_events(Path(board), SAMPLES_FOLDER)
            self._board_thread.enter_context(quiet_board_thread())
            self._board = Board(Path(board), first_step, first_samples)
        self._wandb: WandbBoard | None = None
        if config.wandb_project:
            self._wandb = WandbBoard(config, yaml.safe_load(resolved_config) or {}, resumed=not anew)

    def say(self, text: str) -> None:
        # The console may be a file, on the disk that is full.
        with suppress(OSError):
            print(text, flush=True)

    def step(self, report: StepReport) -> None:
        speed = self._scale.speed(1, report.seconds)
        self._interval.add(report)
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
            for line in self._interval.lines(report):
                self.say(line)

    def evaluation(self, step: int, samples: int, loss: float, name: str = "") -> None:
        tail, ppl = f"/{name}" if name else "", perplexity(loss)
        self.say(f"validation{name and ' ' + name} at step {step} | loss {loss:.4f} | ppl {ppl:.2f}")
        self._add({"step": step, "samples": samples, f"valid_loss{tail}": loss, f"valid_ppl{tail}": ppl})
        scalars = {f"lm loss validation{tail}": loss, f"lm loss validation{tail} ppl": ppl}
        self._write_scalars(step, samples, scalars)

    def event(self, kind: EventKind, step: int, **facts: Any) -> None:
        if self._events is not None:
            self._events.append({"event": kind, "step": step, "time": round(time(), 3), **facts})

    def go_back(self, step: int, samples: int) -> None:
        self._interval = Interval(self._scale)
        if self._metrics is not None:
            self._metrics.go_back(step)
        if self._board is not None:
            self._guard.write(BOARD, lambda: self._board_anew(step, samples))

    def _board_anew(self, step: int, samples: int) -> None:
        if self._board is not None:
            self._board.close()
            self._board = Board(self._board.folder, step, samples)

    def close(self) -> None:
        """Closes the files and draws the loss."""
        for records in (self._metrics, self._events):
            if records is not None:
                records.close()
        if self._folder is not None:
            metrics, plot = self._folder / METRICS_NAME, self._folder / PLOT_NAME
            self._guard.close(PLOT_NAME, lambda: write_loss_plot(metrics, plot))
        if self._board is not None:
            self._guard.close(BOARD, self._board.close)
        if self._wandb is not None:
            self._guard.close(WANDB, self._wandb.close)
        self._board_thread.close()

    def _write_json(self, report: StepReport, speed: Speed) -> None:
        self._add(
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

    def _add(self, record: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.append(record)

    def _write_scalars(self, step: int, samples: int, scalars: dict[str, float]) -> None:
        if self._board is not None:
            board = self._board
            self._guard.write(BOARD, lambda: board.scalars(step, samples, scalars))
        if self._wandb is not None:
            wandb = self._wandb
            self._guard.write(WANDB, lambda: wandb.scalars(step, samples, scalars))
