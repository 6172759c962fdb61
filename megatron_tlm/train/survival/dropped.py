"""What becomes of a run after a step whose update was not made: it stops, goes on behind the step, or goes back.

skip        the step counts as one of the run's, its samples as consumed; model and optimizer are as before it
rollback    the state of the last checkpoint, and the data from behind the bad step on: its whole window is left out
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_tlm.plan.explain import counted
from megatron_tlm.train.engines.engine import MicroBatches, StepResult
from megatron_tlm.train.engines.gate import refuse
from megatron_tlm.train.run import Run
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.survival.agree import AgreedError
from megatron_tlm.train.survival.bad_steps import Verdict
from megatron_tlm.train.survival.locate import locate


class Kept:
    """Micro-batches that can be taken once more, as many as were taken."""

    def __init__(self, source: MicroBatches) -> None:
        self._source = source
        self.taken: list[NDArray[np.int64]] = []

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return self

    def __next__(self) -> NDArray[np.int64]:
        self.taken.append(next(self._source))
        return self.taken[-1]


def pass_over(run: Run, progress: Progress, batches: MicroBatches) -> Progress:
    """Reads a step's samples and trains on none, as --iterations-to-skip asks."""
    step = progress.step + 1
    for _ in islice(batches, run.plan.micro_batches):
        pass
    run.log.event("bad_step", step, action="skip", cause="--iterations-to-skip", samples=_samples(run, progress))
    run.log.say(f"step {step}: left out as asked, samples {_span(run, progress)}")
    return progress.after_skip(run.samples_per_step)


def after_drop(run: Run, progress: Progress, result: StepResult, kept: Kept, first_step: int) -> Progress:
    """Tells of the bad step, and decides; collective. AgreedError where the run is to stop, naming a checkpoint."""
    step, verdict = progress.step + 1, run.judge.verdict(result.loss, result.grad_norm)
    if verdict is None:
        raise AgreedError(
            f"step {step}: update = refused with a loss of {result.loss:g}, and nobody knows why; report it"
        )
    facts: dict[str, Any] = {"loss": result.loss, "grad_norm": result.grad_norm, "samples": _samples(run, progress)}
    told = f"step {step}: {verdict.cause}, samples {_span(run, progress)}"
    if not _is_spike(result):
        run.place.at(f"step {step}, repeated to find where it went wrong")
        seed = torch.initial_seed()

        def repeat() -> None:
            torch.manual_seed(seed)
            run.engine.train_step(iter(kept.taken), run.schedule(progress.step), refuse)

        found = locate(run.engine, run.mesh, repeat)
        facts |= {"unit": found.unit, "parameter": found.parameter}
        told += f", {found}"
    count = run.judge.dropped(progress.consumed_samples // run.samples_per_step)
    run.log.event("bad_step", step, action=verdict.action, cause=verdict.cause, **facts)
    run.log.say(told)
    if run.saver is not None:
        run.saver.finish()  # what was begun is the checkpoint to go back to
    saved_step = first_step if run.saver is None else run.saver.saved_step
    if verdict.action == "stop" or run.judge.too_many:
        raise AgreedError(_last_word(run, step, verdict, saved_step, count))
    if verdict.action == "rollback":
        return _go_back(run, progress, verdict, saved_step)
    run.log.say(f"step {step}: left out, {count} of at most {run.config.resilience.bad_step_limit}")
    return progress.after_skip(run.samples_per_step)


def _go_back(run: Run, progress: Progress, verdict: Verdict, saved_step: int) -> Progress:
    step = progress.step + 1
    if run.go_back is None or not saved_step:
        raise AgreedError(
            f"step {step}: {verdict.cause}, and 0 checkpoints are there to go back to; lower --save-interval, "
            "or skip such steps"
        )
    back, kept = run.go_back(saved_step)
    run.judge.restore(kept)
    back = replace(back, consumed_samples=progress.consumed_samples + run.samples_per_step)
    run.log.go_back(back.step, back.consumed_samples)
    run.log.event("rollback", step, to_step=back.step, cause=verdict.cause)
    run.log.say(
        f"step {step}: back to the checkpoint of step {back.step}, and on behind the samples of this one; "
        f"{counted(step - back.step, 'step')} lost"
    )
    return back


def _last_word(run: Run, step: int, verdict: Verdict, saved_step: int, count: int) -> str:
    if verdict.action != "stop":
        limit = run.config.resilience.bad_step_limit
        return (
            f"step {step}: {verdict.cause}, bad steps = {count} exceed --bad-step-limit {limit}; {_way_out(saved_step)}"
        )
    return f"step {step}: {verdict.cause}; {_way_out(saved_step)}"


def _way_out(saved_step: int) -> str:
    way_out = "lower --lr or --clip-grad, or raise --lr-warmup-iters"
    return f"{way_out}, and continue from the checkpoint of step {saved_step}" if saved_step else way_out


def _is_spike(result: StepResult) -> bool:
    return bool(np.isfinite(result.loss) and np.isfinite(result.grad_norm))


def _samples(run: Run, progress: Progress) -> list[int]:
    """The first and the last of the step, counted from the start of the run."""
    return [progress.consumed_samples, progress.consumed_samples + run.samples_per_step - 1]


def _span(run: Run, progress: Progress) -> str:
    first, last = _samples(run, progress)
    return f"{first} to {last}"
