"""How much faster the planner's cut is than the rules of DeepSpeed and Megatron, simulated: docs/planner.md's table.

    python tools/bench/plan_gains.py            a row per preset, stages and vocabulary, a column per sequence length
    python tools/bench/plan_gains.py --full     a row per case, a column per rule
    python tools/bench/plan_gains.py --brief    a row per rule, a column per preset, median and largest

Each number is a rule's simulated step time over ours, minus one, in percent. Exits with 1 if any rule is ever ahead.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from megatron_tlm.config.document import preset_names, read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.compare import RULES, Rival, rivals

STAGES = (2, 4, 8)
VOCABULARIES = (32_000, 128_000)
LENGTHS = (2048, 4096, 8192)


class Case(NamedTuple):
    """One model, cut by every rule."""

    preset: str
    stages: int
    vocabulary: int
    length: int
    rivals: tuple[Rival, ...]
    proven: bool

    def gain(self, rival: Rival) -> float | None:
        """By how much more time the rule's cut takes; None where it has none."""
        return rival.step_time / self.rivals[-1].step_time - 1 if rival.plan is not None else None

    @property
    def gains(self) -> list[float]:
        return [gain for rival in self.rivals[:-1] if (gain := self.gain(rival)) is not None]


def cases() -> Iterator[Case]:
    """Every preset that is deep enough for so many stages."""
    for preset in preset_names():
        base = build([read_preset(preset)])
        for stages in STAGES:
            for vocabulary in VOCABULARIES:
                for length in LENGTHS:
                    try:
                        plan = build_plan(_config(base, stages, vocabulary, length), vocabulary)
                    except PlanError:
                        continue
                    yield Case(
                        preset, stages, vocabulary, length, rivals(plan), plan.cut is not None and plan.cut.proven
                    )


def _config(base: Config, stages: int, vocabulary: int, length: int) -> Config:
    return replace(
        base,
        model=replace(base.model, seq_length=length, max_position_embeddings=None, vocab_size=vocabulary),
        parallel=replace(base.parallel, pipeline_model_parallel_size=stages, zero_stage=1),
    )


def short_table(found: list[Case]) -> list[str]:
    """Gains over the best rule and over DeepSpeed's `parameters`."""
    lengths = " | ".join(f"{length // 1024}k" for length in LENGTHS)
    lines = [f"| preset | stages | vocabulary | {lengths} |", "| --- " * (3 + len(LENGTHS)) + "|"]
    rows: dict[tuple[str, int, int], list[str]] = {}
    for case in found:
        if not case.gains:
            continue
        parameters = case.gain(case.rivals[1])
        other = f"{parameters:.1%}" if parameters is not None else "-"
        rows.setdefault(case[:3], []).append(f"{min(case.gains):.1%} / {other}")
    for (preset, stages, vocabulary), cells in rows.items():
        lines.append(f"| {preset} | {stages} | {vocabulary // 1000}k | {' | '.join(cells)} |")
    return lines


def brief_table(found: list[Case]) -> list[str]:
    """Over all stages, vocabularies and lengths of a preset: the median gain and the largest over each rule."""
    presets = list(dict.fromkeys(case.preset for case in found if case.gains))
    lines = [f"| rule | {' | '.join(presets)} |", "| --- " * (1 + len(presets)) + "|"]
    for index, rule in enumerate(RULES):
        cells = []
        for preset in presets:
            gains = [case.gain(case.rivals[index]) for case in found if case.preset == preset]
            known = [gain for gain in gains if gain is not None]
            cells.append(f"{median(known):.1%} / {max(known):.1%}" if known else "-")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


def full_table(found: list[Case]) -> list[str]:
    """A row per case, with the slowest stage over the mean of ours."""
    lines = [f"| preset | stages | vocabulary | length | slowest/mean | {' | '.join(RULES)} |"]
    lines.append("| --- " * (5 + len(RULES)) + "|")
    for case in found:
        gains = [case.gain(rival) for rival in case.rivals[:-1]]
        cells = " | ".join("-" if gain is None else f"{gain:.1%}" for gain in gains)
        ratio = case.rivals[-1].slowest_over_mean
        lines.append(f"| {case.preset} | {case.stages} | {case.vocabulary} | {case.length} | {ratio:.3f} | {cells} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", dest="table", action="store_const", const=full_table, default=short_table)
    size.add_argument("--brief", dest="table", action="store_const", const=brief_table)
    table = parser.parse_args().table
    found = list(cases())
    print("\n".join(table(found)))
    behind = [case for case in found if any(gain < 0 for gain in case.gains)]
    unproven = sum(not case.proven for case in found)
    print(f"\n{len(found)} cases, {len(behind)} behind a rule, {unproven} not proven the best", file=sys.stderr)
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
