"""Stages given by hand, in Megatron's ways and by unit name: checked, never silently altered.

--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 2     the rest shared evenly
--pipeline-model-parallel-layout "Et*3|(tt|)*4,t|tL"    E embedding, t layer, L loss, | next stage, , for the eye
--pipeline-cuts layers.3.mlp,layers.9.mixer             the unit that each stage but the first begins with
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.units import Unit

Stages = tuple[range, ...]
LAYOUT_FLAG = "pipeline_model_parallel_layout"
LONGEST_LAYOUT = 100_000  # letters: ten times the deepest model
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
_REPEAT = re.compile(r"([EtmL|])\*(\d+)")


def manual_stages(parallel: ParallelConfig, units: Sequence[Unit]) -> Stages | None:
    """The stages that a configuration gives by hand, None where it leaves them to us. PlanError for two ways."""
    first, last = parallel.decoder_first_pipeline_num_layers, parallel.decoder_last_pipeline_num_layers
    layout, cuts, stages = (
        parallel.pipeline_model_parallel_layout,
        parallel.pipeline_cuts,
        parallel.pipeline_model_parallel_size,
    )
    ways = {"decoder_first/last_pipeline_num_layers": first or last, LAYOUT_FLAG: layout, "pipeline_cuts": cuts}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise PlanError(f"{' and '.join(given)} both give the stages by hand, in {len(given)} ways; give one")
    if first is not None or last is not None:
        return stages_by_layer_counts(units, stages, first, last)
    if layout is not None:
        return stages_by_layout(units, stages, layout)
    return stages_by_name(units, stages, cuts) if cuts else None


def stages_by_layer_counts(
    units: Sequence[Unit], num_stages: int, first: int | None = None, last: int | None = None
) -> Stages:
    """Whole layers, `first` of them on the first stage and `last` on the last, the others sharing the rest evenly.

    PlanError where the rest does not divide, naming counts that would.
    """
    layers = sum(unit.kind == "mixer" for unit in units)
    given = [(name, count) for name, count in (("first", first), ("last", last)) if count is not None]
    for name, count in given:
        if not 1 <= count <= layers:
            raise PlanError(
                f"decoder_{name}_pipeline_num_layers = {count} is outside 1..{layers}; give a number of layers within"
            )
    between, rest = num_stages - len(given), layers - sum(count for _, count in given)
    if between < 0:
        raise PlanError(
            f"decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers name {len(given)} stages of "
            f"{num_stages}; give one of them or more stages"
        )
    told = " and ".join(f"decoder_{name}_pipeline_num_layers = {count}" for name, count in given)
    if between == 0 and rest:
        verb, them = ("leaves", "it") if len(given) == 1 else ("leave", "them")
        raise PlanError(
            f"{told} {verb} {rest} of {layers} layers without a stage, pipeline_model_parallel_size = {num_stages}; "
            f"give more stages, or leave {them} out"
        )
    if between > 0 and (rest < between or rest % between):
        below = max(rest // between, 1) * between
        raise PlanError(
            f"{told} leaves {rest} layers = {layers} - {layers - rest} that cannot be shared evenly by {between} "
            f"{'stage' if between == 1 else 'stages'}; leave {below} or {below + between} layers for them"
        )
    even = [rest // between] * between if between else []
    counts = ([first] if first is not None else []) + even + ([last] if last is not None else [])
    starts = _layer_starts(units)
    borders, taken = [0], 0
    for count in counts[:-1]:
        taken += count
        borders.append(starts[taken])
    return _ranges([*borders, len(units)])


def stages_by_layout(units: Sequence[Unit], num_stages: int, layout: str) -> Stages:
    """Megatron's layout string: stages parted by |, each a run of E, t and L; groups and letters repeat with *n.

    PlanError for other letters, another number of stages, or a model that is not all there in order.
    """
    written = _expand(layout)
    odd = sorted(set(written) - set("EtL|"))
    if odd:
        raise PlanError(
            f"{LAYOUT_FLAG} = {layout} holds {', '.join(odd)} besides E, t, L and |; this model has an embedding, "
            "decoder layers and a loss"
        )
    parts = written.split("|")
    if len(parts) != num_stages:
        raise PlanError(
            f"{LAYOUT_FLAG} = {layout} has {len(parts)} stages for pipeline_model_parallel_size = {num_stages}; "
            "make them agree"
        )
    layers = sum(unit.kind == "mixer" for unit in units)
    if "".join(parts) != "E" + "t" * layers + "L":
        raise PlanError(
            f"{LAYOUT_FLAG} = {layout} holds {written.count('E')} E, {written.count('t')} t, {written.count('L')} L; "
            f"write one E, then {layers} t, then one L"
        )
    if not all(parts):
        raise PlanError(
            f"{LAYOUT_FLAG} = {layout} leaves stage {parts.index('')} empty of {num_stages}; DeepSpeed needs a "
            "parameter on each"
        )
    starts = [0, *_layer_starts(units)]
    borders, taken = [0], 0
    for part in parts[:-1]:
        taken += len(part)
        borders.append(starts[taken])
    return _ranges([*borders, len(units)])


def stages_by_name(units: Sequence[Unit], num_stages: int, cuts: Sequence[str]) -> Stages:
    """Stages that begin with the named units; PlanError for a name that is none, out of order, or one too few."""
    names = [unit.name for unit in units]
    if len(cuts) != num_stages - 1:
        raise PlanError(
            f"pipeline_cuts = {len(cuts)} names make {len(cuts) + 1} stages, not {num_stages}; give {num_stages - 1}"
        )
    borders = [0]
    for cut in cuts:
        if cut not in names:
            raise PlanError(
                f"pipeline_cuts names {cut!r}, which is none of the {len(names)} units; use names such as {names[1]}"
            )
        borders.append(names.index(cut))
    for (_, earlier), (_, later) in pairwise(zip(["", *cuts], borders, strict=True)):
        if earlier >= later:
            raise PlanError(
                f"pipeline_cuts = {', '.join(cuts)} is not in order at unit {later} after {earlier}; name the units "
                "from the first stage to the last"
            )
    return _ranges([*borders, len(units)])


def check_stages(stages: Sequence[range], pieces: Sequence[range], units: Sequence[Unit]) -> None:
    """PlanError where a stage begins inside a piece: DeepSpeed could not run it (see `plan.setting.glue`)."""
    starts = {piece.start for piece in pieces}
    for stage, own in enumerate(stages):
        if own.start not in starts:
            held = next(piece for piece in pieces if own.start in piece)
            together = " and ".join(units[index].name for index in held)
            raise PlanError(
                f"stage {stage} = {units[own.start].name}... parts {together}, but DeepSpeed needs on each of the "
                f"{len(stages)} stages a decayed and an undecayed parameter that count; keep them together"
            )


def _expand(layout: str) -> str:
    """Commas and blanks out, groups and repeats written out."""

    def repeated(letters: str, times: str) -> str:
        # A number of ten digits is too many by itself, and one of thousands cannot be read.
        count = int(times[:10])
        if len(letters) * count > LONGEST_LAYOUT:
            raise PlanError(
                f"{LAYOUT_FLAG} = {layout} repeats {letters} {count} times or more, beyond {LONGEST_LAYOUT} letters; "
                "repeat as often as there are layers"
            )
        return letters * count

    text = re.sub(r"[,\s]", "", layout)
    while (group := _GROUP.search(text)) is not None:
        inner = _REPEAT.sub(lambda match: repeated(match[1], match[2]), group[1])
        text = text[: group.start()] + repeated(inner, group[2] or "1") + text[group.end() :]
    return _REPEAT.sub(lambda match: repeated(match[1], match[2]), text)


def _layer_starts(units: Sequence[Unit]) -> list[int]:
    """The index of each layer's first unit, then the head's."""
    return [index for index, unit in enumerate(units) if unit.kind in ("mixer", "head")]


def _ranges(borders: Sequence[int]) -> Stages:
    return tuple(range(first, stop) for first, stop in pairwise(borders))
