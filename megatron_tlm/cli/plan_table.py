"""A plan as a person reads it: the taper as a picture, what each layer costs, how even the stages are."""

from megatron_tlm.config.schema import TaperConfig
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.explain import counted
from megatron_tlm.plan.refusal import gibibytes

BAR_LENGTH = 32
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SCALES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def describe(plan: Plan, taper: TaperConfig, *, unicode: bool = True) -> str:
    """The whole plan as text of at most 120 columns; without `unicode` the bars are made of #."""
    parts = (_summary(plan, taper), _layers(plan, unicode), _stages(plan, unicode))
    return "\n\n".join("\n".join(lines) for lines in parts)


def scaled(value: float, unit: str = "") -> str:
    """1364000000 -> 1.364 G, as short as three decimals allow."""
    size, letter = _scale(value)
    return f"{value / size:.3f} {letter}{unit}" if letter else f"{value:g} {unit}".rstrip()


def _summary(plan: Plan, taper: TaperConfig) -> list[str]:
    shape, grid, widths = plan.shape, plan.grid, plan.shape.widths
    mean = sum(widths) / len(widths)
    shared = shape.num_query_groups != shape.num_attention_heads
    groups = f" on {shape.num_query_groups} key/value heads" if shared else ""
    tied = "tied" if shape.tied_embeddings else "untied"
    return [
        f"model   {shape.num_layers} layers of {shape.hidden_size}, {shape.num_attention_heads} heads of "
        f"{shape.kv_channels}{groups}, {shape.vocab_size} ids ({tied}), {plan.seq_length} tokens a sample",
        f"        {plan.parameters:,} parameters, {scaled(plan.flops_per_token, 'FLOP')} per token in forward and "
        "backward",
        *_kind(plan),
        f"taper   {_taper(taper)}: widths {widths[0]} to {widths[-1]}, mean {mean:g}",
        f"layout  tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data}, world size {grid.size}; "
        f"{counted(plan.micro_batches, 'micro-batch')} of {plan.workload.micro_batch_size} a step",
    ]


def _kind(plan: Plan) -> list[str]:
    """A line on the architecture, where it is not the plain one; the taper narrows the MLPs alone."""
    shape = plan.shape
    told = [shape.mixer.replace("_", " ")] if shape.mixer != "attention" else []
    if shape.attention_gate != "none":
        told.append(f"{shape.attention_gate} gate")
    if shape.memory_chunk_size:
        told.append(
            f"{shape.num_attention_heads} memories of {shape.kv_channels} x {shape.memory_width}, chunks of "
            f"{shape.memory_chunk_size}, {shape.memory_persistent_tokens} persistent tokens"
        )
    if shape.cms_levels > 1:
        ends = (" + ".join(str(shape.level_width(layer, j)) for j in range(shape.cms_levels)) for layer in (0, -1))
        told.append(f"{shape.cms_levels} MLPs a layer, {' to '.join(ends)}")
    return [f"kind    {', '.join(told)}"] if told else []


def _taper(taper: TaperConfig) -> str:
    if taper.layer_widths:
        return "given"
    if taper.taper_schedule in ("cosine", "linear", "sigmoid"):
        return f"{taper.taper_schedule}, {taper.taper_start:g} to {taper.taper_end:g} of the mean"
    return taper.taper_schedule


def _layers(plan: Plan, unicode: bool) -> list[str]:
    """A row for the embedding, each layer and the head; a layer that two stages share shows both."""
    size, letter = _scale(max(cost.flops for cost in plan.costs))
    widest = max(plan.shape.widths)
    lines = [
        f"{'':9} {'':>6}  {'':{BAR_LENGTH}}  {letter + 'FLOP per token':>19}  {'':>10}  activations",
        f"{'':9} {'width':>6}  {'':{BAR_LENGTH}}  {'mixer':>9} {'MLP':>9}  parameters  {'of a rank':>11}  stage",
    ]
    for indices in _rows(plan):
        first = plan.units[indices[0]]
        costs = [plan.costs[index] for index in indices]
        label = first.name if first.layer is None else f"layer {first.layer}"
        width = 0 if first.layer is None else plan.shape.widths[first.layer]
        bar = _bar(width / widest, unicode) if width else ""
        halves = [costs[0].flops, *([sum(cost.flops for cost in costs[1:])] if width else [])]
        flops = " ".join(f"{half / size:9.1f}" for half in halves)
        parameters = scaled(sum(cost.parameters for cost in costs))
        activations = gibibytes(sum(cost.activation_bytes for cost in costs), least=1)
        stages = "|".join(dict.fromkeys(str(_stage_of(plan, index)) for index in indices))
        lines.append(
            f"{label:9} {width or '':>6}  {bar:{BAR_LENGTH}}  {flops:19}  {parameters:>10}  {activations:>11}  "
            f"{stages:>5}"
        )
    return lines


def _stages(plan: Plan, unicode: bool) -> list[str]:
    """A row for each stage, its bar against the slowest; then how far the slowest is from the mean."""
    lines = [f"{'stage':>5}  {'first unit':16} {'last unit':16} {'parameters':>10}  {'FLOP per token':>14}  over mean"]
    for stage, record in enumerate(plan.to_json()["stages"]):
        cost = record["cost"]
        lines.append(
            f"{stage:5}  {record['first_unit']:16} {record['last_unit']:16} {scaled(record['parameters']):>10}  "
            f"{scaled(cost):>14}  {cost / plan.mean:9.3f}  {_bar(cost / plan.slowest, unicode)}"
        )
    ratio = plan.slowest / plan.mean
    lines.append(
        f"by FLOPs: slowest stage {scaled(plan.slowest, 'FLOP')} per token, mean {scaled(plan.mean, 'FLOP')}: "
        f"slowest over mean {ratio:.3f}"
    )
    return lines


def _rows(plan: Plan) -> list[tuple[int, ...]]:
    """Unit indices by row: embedding, then each layer's mixer and MLPs, then the head."""
    last = len(plan.units) - 1
    height = plan.shape.num_branches // plan.shape.num_layers
    return [(0,), *(tuple(range(index, index + height)) for index in range(1, last, height)), (last,)]


def _stage_of(plan: Plan, unit: int) -> int:
    return next(stage for stage, indices in enumerate(plan.stages) if unit in indices)


def _bar(share: float, unicode: bool) -> str:
    """A bar of `share` of BAR_LENGTH columns, to the eighth of one."""
    if not unicode:
        return "#" * max(1, round(share * BAR_LENGTH))
    eighths = max(1, round(share * BAR_LENGTH * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _scale(value: float) -> tuple[int, str]:
    return next(((size, letter) for size, letter in _SCALES if value >= size), (1, ""))
