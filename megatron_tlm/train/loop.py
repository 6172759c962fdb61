"""The training loop: steps, evaluations, saves, and the ways a run may end.

Nothing in it is random state: a step's dropout is seeded by its number, its samples follow from the samples consumed,
its learning rate from its number. A resumed run therefore repeats what an uninterrupted one would have done.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.comm.groups import Mesh
from megatron_tlm.comm.rng import step_seed
from megatron_tlm.config.schema import Config
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.data.loader import micro_batches, samples_by_source
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.agree import AgreedError
from megatron_tlm.train.build import choose_backend
from megatron_tlm.train.engine import Engine, MicroBatches, StepResult
from megatron_tlm.train.feed import Feed
from megatron_tlm.train.log import RunLog, StepReport
from megatron_tlm.train.saver import Saver
from megatron_tlm.train.saving import Progress
from megatron_tlm.train.schedule import Schedule
from megatron_tlm.train.stop import StopRequest
from megatron_tlm.train.watch import Moment, Watcher, watched


@dataclass(frozen=True)
class Run:
    """All that a loop needs; `saver` writes checkpoints, None where nothing is to be saved."""

    config: Config
    plan: Plan
    mesh: Mesh
    engine: Engine
    schedule: Schedule
    train_steps: int
    train: SampleDataset
    valid: SampleDataset | None
    log: RunLog
    saver: Saver | None
    data_facts: Callable[[int], Mapping[str, Scalar]] = lambda consumed_samples: {}
    watchers: Sequence[Watcher] = ()

    @property
    def samples_per_step(self) -> int:
        return self.plan.micro_batches * self.config.training.micro_batch_size * self.plan.grid.data

    @property
    def tokens_per_step(self) -> int:
        return self.samples_per_step * self.plan.seq_length


def train_loop(run: Run, progress: Progress) -> Progress:
    """Trains from `progress` to the end, an exit interval or a signal, and saves there; how far it came."""
    first_step = progress.step
    stream = data_stream(run, run.train, progress.consumed_samples)
    with StopRequest() as stop, Feed(stream, pinned=choose_backend(run.config) == "nccl") as batches:
        while progress.step < run.train_steps:
            progress = _one_step(run, progress, batches, first_step)
            if run.saver is not None:
                run.saver.poll()
            step, stopped = progress.step, stop.agreed()
            # A scheduler that sends SIGTERM kills soon after: what is left of the time belongs to the save.
            if not stopped and (_is_due(step, run.config.training.eval_interval) or step == run.train_steps):
                _evaluate(run, progress)
            leaving = stopped or _is_due(step, run.config.training.exit_interval) or step == run.train_steps
            if run.saver is not None and (leaving or _is_due(step, run.config.checkpoint.save_interval)):
                run.saver.start(replace(progress, data=run.data_facts(progress.consumed_samples)), last=leaving)
            if leaving:
                _say_goodbye(run, progress, stopped)
                break
    return progress


def data_stream(run: Run, dataset: SampleDataset, start_sample: int) -> MicroBatches:
    """This data rank's micro-batches of a dataset, from a global sample on."""
    return micro_batches(
        dataset,
        start_sample=start_sample,
        micro_batch_size=run.config.training.micro_batch_size,
        global_batch_size=run.samples_per_step,
        data_rank=run.mesh.data.rank,
        data_size=run.mesh.data.size,
    )


def is_finite(result: StepResult) -> bool:
    return math.isfinite(result.loss) and math.isfinite(result.grad_norm)


def check_finite(result: StepResult, step: int, saved_step: int) -> None:
    """AgreedError naming the step whose loss or gradient left the numbers; all ranks see the same values."""
    if is_finite(result):
        return
    way_out = "lower --lr or --clip-grad, or raise --lr-warmup-iters"
    if saved_step:
        way_out += f", and continue from the checkpoint of step {saved_step}"
    raise AgreedError(
        f"step {step}: loss = {result.loss:g} with gradient norm {result.grad_norm:g} is not finite; {way_out}"
    )


def _one_step(run: Run, progress: Progress, batches: Feed, first_step: int) -> Progress:
    place = run.mesh.coordinate
    torch.manual_seed(step_seed(run.config.training.seed, progress.step, place.data, place.pipe))
    learning_rate = run.schedule(progress.step)
    start = time.perf_counter()
    result = run.engine.train_step(batches, learning_rate)
    seconds = time.perf_counter() - start
    if run.saver is not None and not is_finite(result):
        run.saver.finish()  # what was begun is the checkpoint to go back to
    check_finite(result, progress.step + 1, run.saver.saved_step if run.saver is not None else first_step)
    progress = progress.after_step(run.samples_per_step, run.tokens_per_step)
    wait_seconds = batches.take_wait()
    seen = watched(run.watchers, Moment(progress.step, result, seconds, wait_seconds))
    run.log.step(
        StepReport(
            step=progress.step,
            samples=progress.consumed_samples,
            tokens=progress.consumed_tokens,
            result=result,
            learning_rate=learning_rate,
            seconds=seconds,
            wait_seconds=wait_seconds,
            scalars=seen,
            sources=_tokens_by_source(run, progress),
        )
    )
    return progress


def _tokens_by_source(run: Run, progress: Progress) -> dict[str, int]:
    """Trained on from the start of the run, by corpus; counted where it is going to be told."""
    if run.mesh.rank or not (
        _is_due(progress.step, run.config.logging.log_interval) or progress.step == run.train_steps
    ):
        return {}
    counts = samples_by_source(run.train, progress.consumed_samples)
    return {source: samples * run.plan.seq_length for source, samples in counts.items()}


def _evaluate(run: Run, progress: Progress) -> None:
    """The same validation samples every time, so that losses can be compared and a resume changes nothing."""
    iterations = run.config.training.eval_iters
    if run.valid is None or iterations == 0:
        return
    loss = run.engine.evaluate(data_stream(run, run.valid, 0), iterations * run.plan.micro_batches)
    run.log.evaluation(progress.step, progress.consumed_samples, loss)


def _say_goodbye(run: Run, progress: Progress, stopped: bool) -> None:
    step, rest = progress.step, run.train_steps - progress.step
    if not rest:
        run.log.say(f"finished {step} steps, {progress.consumed_tokens} tokens")
        return
    cause = "asked to stop" if stopped else f"exit interval {run.config.training.exit_interval}"
    kept = (
        f"saved; --load {run.config.checkpoint.save} continues" if run.saver else "not saved: no --save DIR was given"
    )
    run.log.say(f"{cause} after step {step} of {run.train_steps}, {kept} with {rest} steps to go")


def _is_due(step: int, interval: int | None) -> bool:
    return interval is not None and step % interval == 0
