"""The training loop: steps, evaluations, saves, and the ways a run may end.

Nothing in it is random state: a step's dropout is seeded by its number, its samples follow from the samples consumed,
its learning rate from its number. A resumed run therefore repeats what an uninterrupted one would have done.
"""

import time
from dataclasses import replace

import torch

from megatron_tlm.comm.rng import step_seed
from megatron_tlm.data.gpt_dataset import SampleDataset
from megatron_tlm.data.loader import micro_batches, samples_by_source
from megatron_tlm.train.engines.build import choose_backend
from megatron_tlm.train.engines.engine import MicroBatches, StepResult
from megatron_tlm.train.feed import Feed
from megatron_tlm.train.logs.log import StepReport
from megatron_tlm.train.logs.watch import Moment, watched
from megatron_tlm.train.run import Run
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.survival.dropped import Kept, after_drop, pass_over
from megatron_tlm.train.survival.stop import LOST_LAUNCHER, LostLauncherError, StopRequest


def train_loop(run: Run, progress: Progress) -> Progress:
    """Trains from `progress` to the end, an exit interval or a wish to stop, and saves there; how far it came."""
    first_step = progress.step
    stream = data_stream(run, run.train, progress.consumed_samples)
    pinned = choose_backend(run.config) == "nccl"
    stopping = StopRequest(run.config.resilience, run.mesh.rank, run.began)
    with stopping as stop, Feed(stream, pinned=pinned) as batches:
        if wish := stop.agreed():
            _say_goodbye(run, progress, wish, trained=False)
            return progress
        while progress.step < run.train_steps:
            former, progress = progress.step, _one_step(run, progress, batches, first_step)
            run.place.steps = progress.step
            if run.saver is not None:
                run.saver.poll()
            wish = stop.agreed()
            if progress.step <= former and not wish:
                continue  # gone back: what is due there was done
            if _end_step(run, progress, wish):
                break
    return progress


def _end_step(run: Run, progress: Progress, wish: str | None) -> bool:
    """What is due after a step; whether it was the last."""
    step, training = progress.step, run.config.training
    # A scheduler that sends SIGTERM kills soon after: what is left of the time belongs to the save.
    if not wish and (_is_due(step, training.eval_interval) or step == run.train_steps):
        _evaluate(run, progress)
    leaving = bool(wish) or _is_due(step, training.exit_interval) or step == run.train_steps
    if run.saver is not None and (leaving or _is_due(step, run.config.checkpoint.save_interval)):
        run.place.at(f"saving step {step}", "saving")
        kept = {**run.data_facts(progress.consumed_samples), **run.judge.facts()}
        run.saver.start(replace(progress, data=kept), last=leaving)
    if leaving:
        _say_goodbye(run, progress, wish)
    return leaving


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


def _one_step(run: Run, progress: Progress, batches: Feed, first_step: int) -> Progress:
    run.place.at(f"step {progress.step + 1}")
    if progress.step + 1 in run.config.resilience.iterations_to_skip:
        return pass_over(run, progress, batches)
    place = run.mesh.coordinate
    torch.manual_seed(step_seed(run.config.training.seed, progress.step, place.data, place.pipe))
    learning_rate = run.schedule(progress.step)
    start, kept = time.perf_counter(), Kept(batches)
    result = run.engine.train_step(kept, learning_rate, run.judge)
    seconds = time.perf_counter() - start
    if not result.applied:
        return after_drop(run, progress, result, kept, first_step)
    _judge_afterwards(run, progress, result)
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


def _judge_afterwards(run: Run, progress: Progress, result: StepResult) -> None:
    """A spike that is only to be told is told; either way later steps are judged by this one too."""
    step, verdict = progress.step + 1, run.judge.verdict(result.loss, result.grad_norm)
    if verdict is not None:
        told = {"loss": result.loss, "grad_norm": result.grad_norm}
        run.log.event("bad_step", step, action="tell", cause=verdict.cause, **told)
        run.log.say(f"step {step}: {verdict.cause}")
    run.judge.accepted(result.loss, result.grad_norm)


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
    training = run.config.training
    if training.eval_iters == 0:
        return
    for name, dataset in {"": run.valid, **run.named}.items():
        if dataset is None:
            continue
        run.place.at(f"evaluation at step {progress.step}", "evaluating")
        iterations = len(dataset) // run.samples_per_step if training.full_validation else training.eval_iters
        loss = run.engine.evaluate(data_stream(run, dataset, 0), iterations * run.plan.micro_batches)
        run.log.evaluation(progress.step, progress.consumed_samples, loss, name)


def _say_goodbye(run: Run, progress: Progress, wish: str | None, *, trained: bool = True) -> None:
    step, rest = progress.step, run.train_steps - progress.step
    if not rest:
        run.log.event("finish", step)
        run.log.say(f"finished {step} steps, {progress.consumed_tokens} tokens")
        return
    cause = wish or f"exit interval {run.config.training.exit_interval}"
    when = f"after step {step} of {run.train_steps}"
    kept = f"saved; --load {run.config.checkpoint.save} continues"
    if not trained or run.saver is None:
        kept = "not saved: no --save DIR was given" if trained else "before a step was taken,"
    if wish == LOST_LAUNCHER:
        left = kept.partition(";")[0].rstrip(",")
        raise LostLauncherError(f"torchrun of a node = gone {when}, {left}; start it again")
    run.log.event("stop", step, cause=cause)
    run.log.say(f"stopped by {cause} {when}, {kept} with {rest} steps to go")


def _is_due(step: int, interval: int | None) -> bool:
    return interval is not None and step % interval == 0
