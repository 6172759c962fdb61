"""The same model cut by the rules of others, each judged by our simulator and our memory.

Rebuilt from what they do, on a list of whole layers: embedding | layer | layer | ... | head.

    DeepSpeed uniform           equal numbers of items, the embedding and the head one item each
    DeepSpeed parameters        its balancer on parameters: the embedding's count, a tied head's count again
    DeepSpeed type:transformer  its balancer on 1 per layer, 0 for the rest
    Megatron equal layers       L / stages layers each; only where that is whole
    Megatron embedding + loss   (L + 2) / stages, embedding and loss counting as a layer each; only where that is whole

DeepSpeed's balancer makes the difference between the largest and the smallest stage small, one prefix after the other,
which is not the same as making the largest small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from megatron_tlm.plan.build import Plan

Stages = tuple[range, ...]


@dataclass(frozen=True)
class Rival:
    """A rule's cut of the plan's model; `stages` is None where the rule has none, and `reason` says why."""

    name: str
    plan: Plan | None
    reason: str = ""

    @property
    def slowest_over_mean(self) -> float:
        """Of forward + backward, in ticks."""
        assert self.plan is not None
        times = [stage.forward + stage.backward for stage in self.plan.stage_times]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0

    @property
    def step_time(self) -> float:
        assert self.plan is not None
        return self.plan.timeline.step_time

    @property
    def peak_bytes(self) -> int:
        assert self.plan is not None
        return max(use.total for use in self.plan.memory)


def rivals(plan: Plan) -> tuple[Rival, ...]:
    """Every rule's cut of a plan's model into as many stages, ours last."""
    found = [_rival(plan, name, rule) for name, rule in RULES.items()]
    return (*found, Rival("ours", plan))


def _rival(plan: Plan, name: str, rule: Callable[[Plan], Stages | str]) -> Rival:
    stages = rule(plan)
    if isinstance(stages, str):
        return Rival(name, None, stages)
    return Rival(name, plan.with_stages(stages))


def layer_items(plan: Plan) -> list[range]:
    """Unit indices of each item of the list that others cut: embedding, whole layers, head."""
    items: list[range] = []
    for index, unit in enumerate(plan.units):
        if unit.layer is not None and items and plan.units[items[-1].start].layer == unit.layer:
            items[-1] = range(items[-1].start, index + 1)
        else:
            items.append(range(index, index + 1))
    return items


def _stages_of(plan: Plan, borders: Sequence[int]) -> Stages | str:
    """Stages from borders between items; a stage without anything to do has no place in a pipeline."""
    items = layer_items(plan)
    empty = [stage for stage, (first, last) in enumerate(pairwise(borders)) if first == last]
    if empty:
        return f"leaves stage {empty[0]} empty"
    return tuple(range(items[first].start, items[last - 1].stop) for first, last in pairwise(borders))


def uniform_borders(num_items: int, num_stages: int) -> list[int]:
    """Equal numbers of items, one more each for the first few stages where they do not divide."""
    if num_items <= num_stages:
        return [min(stage, num_items) for stage in range(num_stages + 1)]
    each, left = divmod(num_items, num_stages)
    return [stage * each + min(stage, left) for stage in range(num_stages + 1)]


def balanced_borders(weights: Sequence[int], num_stages: int) -> list[int]:
    """DeepSpeed's balancer: for each prefix the cut whose largest and smallest stage differ least, ties to the later.

    A prefix is extended from the one choice made for it, hence not the best of all cuts.
    """
    count = len(weights)
    if count <= num_stages:
        return uniform_borders(count, num_stages)
    sums = (0, *accumulate(weights))
    largest = [0.0] + [inf] * count
    smallest = [inf] * (count + 1)
    choices: list[list[int]] = []
    for stage in range(1, num_stages + 1):
        next_largest, next_smallest, choice = [inf] * (count + 1), [inf] * (count + 1), [0] * (count + 1)
        for stop in range(stage, count + 1):
            spread = inf
            for first in range(stop):
                if largest[first] == inf:
                    continue
                load = sums[stop] - sums[first]
                high, low = max(largest[first], load), min(smallest[first], load)
                if high - low <= spread:
                    spread, next_largest[stop], next_smallest[stop], choice[stop] = high - low, high, low, first
        largest, smallest = next_largest, next_smallest
        choices.append(choice)
    borders = [count]
    for choice in reversed(choices):
        borders.append(choice[borders[-1]])
    return borders[::-1]


def _deepspeed_uniform(plan: Plan) -> Stages | str:
    return _stages_of(plan, uniform_borders(len(layer_items(plan)), len(plan.stages)))


def _deepspeed_parameters(plan: Plan) -> Stages | str:
    weights = [sum(plan.units[index].num_parameters for index in item) for item in layer_items(plan)]
    if plan.shape.tied_embeddings:
        weights[-1] += weights[0]
    return _stages_of(plan, balanced_borders(weights, len(plan.stages)))


def _deepspeed_layers(plan: Plan) -> Stages | str:
    weights = [int(plan.units[item.start].layer is not None) for item in layer_items(plan)]
    return _stages_of(plan, balanced_borders(weights, len(plan.stages)))


def _megatron_equal(plan: Plan) -> Stages | str:
    layers, stages = plan.shape.num_layers, len(plan.stages)
    if layers % stages:
        return f"{layers} layers are no multiple of {stages} stages"
    each = layers // stages
    return _stages_of(plan, [0, *(1 + each * stage for stage in range(1, stages)), layers + 2])


def _megatron_counted(plan: Plan) -> Stages | str:
    items, stages = plan.shape.num_layers + 2, len(plan.stages)
    if items % stages:
        return f"{items - 2} layers, embedding and loss are no multiple of {stages} stages"
    return _stages_of(plan, [items // stages * stage for stage in range(stages + 1)])


RULES: dict[str, Callable[[Plan], Stages | str]] = {
    "DeepSpeed uniform": _deepspeed_uniform,
    "DeepSpeed parameters": _deepspeed_parameters,
    "DeepSpeed type:transformer": _deepspeed_layers,
    "Megatron equal layers": _megatron_equal,
    "Megatron, embedding + loss": _megatron_counted,
}
