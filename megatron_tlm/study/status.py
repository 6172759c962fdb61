"""A study on the console: its budgets before the first step, and where each run stands."""

from collections import Counter
from collections.abc import Iterator

from megatron_tlm.study.choice import Snapshot
from megatron_tlm.study.design import Design
from megatron_tlm.study.runs import RunResult, State


def budget_lines(design: Design) -> Iterator[str]:
    """What each arm may spend, and what the whole study comes to."""
    file, budgets = design.file, design.budgets
    width = max(len("/".join(filter(None, pair))) for pair in budgets)
    yield f"{'':{width}} {'parameters':>14} {'in layers':>14} {'MFLOP per token':>16} {'tokens a run':>16}  MLP widths"
    for pair, budget in budgets.items():
        widths = budget.widths if len(set(budget.widths)) > 1 else budget.widths[:1]
        yield (
            f"{'/'.join(filter(None, pair)):{width}} {budget.parameters:14,} {budget.non_embedding:14,} "
            f"{budget.flops_per_token / 1e6:16,.3f} {budget.tokens:16,}  {' '.join(map(str, widths))}"
        )
    rates, tuned = len(file.learning_rates), len(file.tuning_seeds)
    tuning, rest = rates * tuned, len(set(file.seeds) - set(file.tuning_seeds))
    total = sum(budget.tokens for budget in budgets.values()) * (tuning + rest)
    first = (
        f"runs to tune ({rates} rates, {_count(tuned, 'seed')})" if rates > 1 else f"runs of {_count(tuned, 'seed')}"
    )
    then = "at the rates chosen" if rates > 1 else "of other seeds"
    runs = f"{tuning * len(budgets)} {first}, then {rest * len(budgets)} more {then}"
    yield f"budgets are equal; {runs}: {total:,} tokens"
    seconds = [budget.seconds for budget in budgets.values() if budget.seconds is not None]
    if len(seconds) == len(budgets):
        device = design.config(design.example(*design.pairs[0])).parallel.hardware
        hours = sum(seconds) * (tuning + rest) * file.ranks / 3600
        yield f"about {hours:,.0f} hours of one {device}, as the planner predicts; evaluations come on top"


def status_lines(now: Snapshot) -> Iterator[str]:
    """A line for each run, then a count."""
    width = max(len(run.path) for run in now.results)
    for run, result in now.results.items():
        yield f"{run.path:{width}}  {result.state.value:11}  {_progress(result)}".rstrip()
    counts = Counter(result.state for result in now.results.values())
    told = [f"{counts[state]} {state.value}" for state in State if counts[state]]
    yield ", ".join(told + ([f"{now.to_come} to come"] if now.to_come else []))
    seen = [result for result in now.results.values() if result.step]
    steps = _steps_left(now)
    if seen and steps:
        seconds = steps * sum(result.seconds for result in seen) / sum(len(result.train) for result in seen)
        yield f"about {seconds / 60:.0f} min of steps left, one run at a time"


def _steps_left(now: Snapshot) -> int:
    open_states = (State.WAITING, State.INTERRUPTED, State.RUNNING)
    left = sum(result.train_steps - result.step for result in now.results.values() if result.state in open_states)
    return left + now.to_come * max(result.train_steps for result in now.results.values())


def _progress(result: RunResult) -> str:
    if result.state is State.FINISHED:
        return f"validation loss {result.loss:.4f}"
    if result.state is State.FAILED:
        return f"step {result.step}/{result.train_steps}, {result.reason}"
    if not result.step:
        return ""
    left = (result.train_steps - result.step) * result.step_seconds
    seen = f", validation loss {result.valid[-1].loss:.4f}" if result.valid and result.valid[-1].loss else ""
    return f"step {result.step}/{result.train_steps}{seen}, {left / 60:.0f} min of training left"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
