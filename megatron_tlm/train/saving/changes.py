"""What a resumed run does otherwise than the run that saved the checkpoint would have done: told, never refused.

Fields that change the mathematics of the steps to come. Sizes of the model and changed data are refused elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.config.check import global_batch_size
from megatron_tlm.config.dump import from_mapping
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.grid import Grid
from megatron_tlm.train.engines.schedule import Schedule, build_schedule

# By section; what the learning rate and the batch follow from is compared as what comes of it.
FIELDS = {
    "optimizer": ("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
    "training": ("seed", "bf16"),
    "model": ("attention_dropout", "hidden_dropout"),
    "data": ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"),
}


def changes_since(facts: Facts, config: Config, schedule: Schedule, batch: int) -> tuple[str, ...]:
    """A line for each difference; `schedule` and `batch`, in samples, are the resumed run's."""
    try:
        saved = from_mapping(dict(facts.config), "manifest.json")
    except ConfigError as error:
        return (f"what changed since the checkpoint cannot be told, its configuration is of another version ({error})",)
    return tuple(_lines(saved, facts, config, schedule, batch))


def _lines(saved: Config, facts: Facts, config: Config, schedule: Schedule, batch: int) -> Iterator[str]:
    saved_batch = global_batch_size(saved, facts.grid.data)
    former = _schedule(saved, saved_batch)
    if former is not None and former != schedule:
        yield (
            f"the learning rate schedule changed: {_told(former)} -> {_told(schedule)}; step {facts.step + 1} has "
            f"{schedule(facts.step):.3e}, would have had {former(facts.step):.3e}"
        )
    if saved_batch != batch:
        yield _line("training.global_batch_size", saved_batch, batch)
    for section, names in FIELDS.items():
        for name in names:
            old, new = (getattr(getattr(item, section), name) for item in (saved, config))
            if old != new:
                yield _line(f"{section}.{name}", old, new)


def _line(address: str, old: Any, new: Any) -> str:
    return f"{address} changed: {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _schedule(saved: Config, batch: int) -> Schedule | None:
    """None for a checkpoint that no run made: an imported model has no length."""
    steps = saved.training.train_iters or (saved.training.train_samples or 0) // batch
    try:
        return build_schedule(saved.optimizer, steps) if steps else None
    except ConfigError:
        return None


def _told(schedule: Schedule) -> str:
    """`cosine 0.01 to 0 over 20 steps, 3 of them warm-up from 0`."""
    style, peak = schedule.style, f"{schedule.peak:g}"
    text = f"constant {peak}" if style == "constant" else f"{style} {peak} to {schedule.minimum:g}"
    if style != "constant":
        text += f" over {schedule.decay_steps} steps"
    if style == "WSD":
        text += f", the last {schedule.wsd_steps} falling"
    if schedule.warmup_steps:
        text += f", warm-up from {schedule.initial:g} over {schedule.warmup_steps:g}"
    return text


def layout_changes(facts: Facts, plan: Plan) -> tuple[str, ...]:
    """What a resumed run does on other ranks, and in other stages, than the run that saved: a line each."""
    old, new, lines = facts.grid, plan.grid, []
    if old != new:
        lines.append(f"layout changed: {_layout(old)} -> {_layout(new)}")
    if facts.stages != plan.stages and max(old.pipe, new.pipe) > 1:
        cuts = [_cuts(plan, stages) for stages in (facts.stages, plan.stages)]
        lines.append(f"stages recut: {cuts[0]} -> {cuts[1]}")
    return tuple(lines)


def _layout(grid: Grid) -> str:
    return f"tensor {grid.tensor} x pipe {grid.pipe} x data {grid.data}"


def _cuts(plan: Plan, stages: Sequence[range]) -> str:
    """The stages by the units that they begin with."""
    if len(stages) == 1:
        return "1 stage"
    return f"{len(stages)} stages cut at {', '.join(plan.units[stage.start].name for stage in stages[1:])}"
