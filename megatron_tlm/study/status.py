"""A study on the console: its budgets before the first step, and where each run stands."""

from collections import Counter
from collections.abc import Iterator

from megatron_tlm.study.choice import Snapshot
from megatron_tlm.study.design import Design
from megatron_tlm.study.runs import RunResult, State


def budget_lines(design: Design) -> Iterator[str]:
    """What all runs come to."""
    file = design.file
    budgets = design.budgets
    width = max(len("/".join(filter(None, pair))) for pair in budgets)
    for pair, budget in budgets.items():
        name = "/".join(filter(None, pair))
        yield (
            f"{name:{width}}  {budget.parameters:,} parameters ({budget.non_embedding:,} in layers), "
            f"{budget.flops_per_token:,} FLOPs per token, {budget.tokens:,} tokens a run; widths "
            f"{' '.join(map(str, budget.widths))}"
        )
    tuning = len(list(design.tuning_runs()))
    rest = len(budgets) * len(set(file.seeds) - set(file.tuning_seeds))
    total = sum(budget.tokens for budget in budgets.values()) * (tuning + rest) // len(budgets)
    yield (
        f"{tuning} runs to tune ({len(file.learning_rates)} rates, {len(file.tuning_seeds)} seeds), then {rest} more "
        f"or less with the rates chosen: {total:,} tokens; budgets are equal"
    )


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
