"""Why a model does not fit, and what would make it: the stage, its bytes by kind, the nearest remedies."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.cut import lightest_cut
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.hardware import GIBIBYTE
from megatron_tlm.plan.memory import MemoryUse
from megatron_tlm.plan.pieces import Pieces
from megatron_tlm.plan.resolve import is_divisible
from megatron_tlm.plan.setting import Setting, glue, merge
from megatron_tlm.plan.units import Unit

LARGEST_PIPELINE = 64


def gibibytes(size: float, least: float = 0.1) -> str:
    """A size as people read it: GiB, below `least` of one MiB, below `least` of that KiB."""
    for unit, name in ((GIBIBYTE, "GiB"), (2**20, "MiB")):
        if size >= unit * least:
            return f"{size / unit:.2f} {name}"
    return f"{size / 2**10:.2f} KiB" if size else "0"


def size_and_limit(size: int, limit: int) -> tuple[str, str]:
    """Both as people read them; with the bytes where they would otherwise read the same."""
    texts = gibibytes(size), gibibytes(limit)
    return texts if texts[0] != texts[1] else (f"{texts[0]} ({size} bytes)", f"{texts[1]} ({limit} bytes)")


def lightest_peak(setting: Setting, units: Sequence[Unit], ranges: Sequence[range]) -> tuple[int, int, MemoryUse]:
    """The smallest peak of any cut, and the stage that has it, with its bytes by kind."""
    pipeline = replace(setting.pipeline, micro_batches=max(setting.micro_batches, 1))
    cut = lightest_cut(Pieces(merge([setting.unit_piece(unit) for unit in units], ranges)), pipeline)
    borders = [*(ranges[border].start for border in cut.borders[:-1]), len(units)]
    uses = [setting.stage_memory(stage, units[a:b]) for stage, (a, b) in enumerate(pairwise(borders))]
    fullest = max(range(len(uses)), key=lambda stage: uses[stage].total)
    return uses[fullest].total, fullest, uses[fullest]


def refuse_overfull(setting: Setting, units: Sequence[Unit], ranges: Sequence[range]) -> None:
    """PlanError where even the lightest cut exceeds the memory limit."""
    limit = setting.memory_limit
    if limit is None:
        return
    peak, stage, use = lightest_peak(setting, units, ranges)
    if peak <= limit:
        return
    needed, allowed = size_and_limit(peak, limit)
    stages = setting.grid.pipe
    lightest = f", even in the cut into {stages} stages that needs the least" if stages > 1 else ""
    raise PlanError(
        f"stage {stage} = {needed} a rank ({_by_kind(use)}) exceeds the memory limit of {allowed}{lightest}; "
        f"{_ways_out(remedies(setting, units, peak), limit)}"
    )


def _ways_out(found: Sequence[tuple[str, int]], limit: int) -> str:
    """What suffices by itself, then what only helps."""
    enough = ", or ".join(f"{name} ({gibibytes(size)})" for name, size in found if size <= limit)
    helps = ", ".join(f"{name} ({size_and_limit(size, limit)[0]})" for name, size in found if size > limit)
    if not found:
        return "use more ranks"
    if not helps:
        return f"give {enough}"
    return f"give {enough}; not enough alone: {helps}" if enough else f"combine what is not enough alone: {helps}"


def check_memory(uses: Sequence[MemoryUse], limit: int | None) -> None:
    """PlanError where stages given by hand do not fit."""
    for stage, use in enumerate(uses):
        if limit is not None and use.total > limit:
            needed, allowed = size_and_limit(use.total, limit)
            raise PlanError(
                f"stage {stage} = {needed} a rank ({_by_kind(use)}) exceeds the memory limit of {allowed}; "
                "give it less by hand, or leave the cut to us"
            )


def _by_kind(use: MemoryUse) -> str:
    return ", ".join(f"{kind} {gibibytes(size)}" for kind, size in use.by_kind().items() if size)


def remedies(setting: Setting, units: Sequence[Unit], peak: int) -> list[tuple[str, int]]:
    """Single changes that lower the peak, with the peak each leaves; those that fit come first, then the lowest."""
    found = []
    for name, changed in _changes(setting):
        ranges = glue(units, changed)
        if changed.grid.pipe <= len(ranges):
            size, *_ = lightest_peak(changed, units, ranges)
            if size < peak:
                found.append((name, size))
    limit = setting.memory_limit or 0
    return sorted(found, key=lambda entry: (entry[1] > limit, entry[1]))[:4]


def _changes(setting: Setting) -> list[tuple[str, Setting]]:
    # Byte counts alone: a profile would refuse another workload.
    base = replace(setting, profile=None)
    workload, grid, state = base.workload, base.grid, base.state
    changes = []
    for recompute in ("selective", "full"):
        if workload.recompute not in (recompute, "full"):
            again = replace(workload, recompute=recompute)
            changes.append((f"--recompute-granularity {recompute}", replace(base, workload=again)))
    for zero in range(state.zero_stage + 1, 2 if grid.pipe > 1 else 4):
        changes.append((f"--zero-stage {zero}", replace(base, state=replace(state, zero_stage=zero))))
    if workload.micro_batch_size > 1:
        half = replace(workload, micro_batch_size=workload.micro_batch_size // 2)
        changes.append((f"--micro-batch-size {half.micro_batch_size}", replace(base, workload=half)))
    if grid.tensor > 1 and not workload.sequence_parallel and workload.seq_length % grid.tensor == 0:
        changes.append(("--sequence-parallel", replace(base, workload=replace(workload, sequence_parallel=True))))
    changes += [
        (f"--tensor-model-parallel-size {degree}", other)
        for degree in (2 * grid.tensor, 4 * grid.tensor)
        if (other := _on_tensor_degree(base, degree)) is not None
    ]
    if 2 * grid.pipe <= LARGEST_PIPELINE and state.zero_stage < 2:
        deeper = Grid(2 * grid.pipe, grid.data, grid.tensor)
        changes.append(
            (
                f"--pipeline-model-parallel-size {deeper.pipe}",
                replace(base, grid=deeper, state=replace(state, pipelined=True)),
            )
        )
    return changes


def _on_tensor_degree(setting: Setting, degree: int) -> Setting | None:
    shape, grid = setting.shape, setting.grid
    if not is_divisible(shape, degree) or setting.workload.padded_vocab_size % degree:
        return None
    return replace(
        setting,
        grid=Grid(grid.pipe, grid.data, degree),
        workload=replace(setting.workload, tensor_degree=degree),
    )
