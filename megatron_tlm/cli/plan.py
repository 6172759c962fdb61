"""`megatron-tlm plan`: what a configuration comes to, in integers, before anything starts."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from megatron_tlm.cli import from_run
from megatron_tlm.cli.failure import USER_ERROR
from megatron_tlm.cli.files import check_file, check_plot, writing
from megatron_tlm.cli.options import config_parser, shown_config, speaks_unicode, tell, vocab_size
from megatron_tlm.cli.plan_profile import measure
from megatron_tlm.cli.plan_table import describe
from megatron_tlm.cli.stage_table import compare_lines, search_lines, stage_lines
from megatron_tlm.config.check import check
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.flags import read_flags
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.load import load, notes
from megatron_tlm.config.parser import Parser, integer
from megatron_tlm.config.schema import Config, ParallelConfig
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.compare import Rival, rivals
from megatron_tlm.plan.explain import explain
from megatron_tlm.plan.hardware import find_hardware, parse_bytes
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.plan.resolve import build_shape
from megatron_tlm.plan.search import search_layouts
from megatron_tlm.train.engines.deepspeed_config import check_deepspeed

EXAMPLES = """\
  megatron-tlm plan --preset 1.3b --pipeline-model-parallel-size 4
  megatron-tlm plan --config run.yaml --taper-start 1.75 --taper-end 0.25
  megatron-tlm plan --preset 3b --tensor-model-parallel-size 4 --world-size 64 --json
  megatron-tlm plan --preset 3b --pipeline-model-parallel-size 8 --hardware h100 --compare --plot plan.png
  megatron-tlm plan --preset 3b --search --gpus 64 --hardware h100 --gpu-memory 80GiB --global-batch-size 512
  megatron-tlm plan --config run.yaml --profile profile.json
  megatron-tlm plan --from-run logs
"""
DEFAULT_HARDWARE = "h100"
SHOWN_LAYOUTS = 20
# Micro-batches per stage where no global batch is given: enough for a pipeline to be worth planning.
ASSUMED_MICRO_BATCHES = 4


def main(arguments: Sequence[str]) -> int:
    """Print the plan as a table, or as JSON for programs. Takes every flag of `train`, and some of its own."""
    parser = build_parser()
    namespace = parser.parse(arguments)
    flags = read_flags(namespace)
    target = None if namespace.profile is None else check_file("--profile", namespace.profile)
    plot = check_plot(namespace.plot)
    if namespace.from_run is not None:
        # Its configuration is the run's own.
        return from_run.tell(Path(namespace.from_run), flags, as_json=namespace.json, target=target)
    config = load(flags)
    tell(notes(flags, config))
    if namespace.search:
        return _search(namespace, config)
    if namespace.gpus is not None:
        raise ConfigError(
            f"--gpus = {namespace.gpus} counts the devices to search layouts for; add --search, or give --world-size "
            f"{namespace.gpus} to plan one layout"
        )
    data = check(config, _world_size(namespace, config.parallel))
    check_deepspeed(config)
    if target is not None:
        return measure(config, data, target)
    config = _with_global_batch(config, data)
    plan = build_plan(config, vocab_size(config), data=data)
    found = rivals(plan) if namespace.compare else ()
    if plot is not None:
        # Only now: matplotlib takes a second to import.
        from megatron_tlm.cli.plan_plot import write_plan_plot

        with writing("--plot", plot):
            write_plan_plot(plan, plot)
    if namespace.json:
        told: dict[str, object] = {"compare": [_rival_json(rival) for rival in found]} if found else {}
        told |= {"config": as_mapping(config)} if namespace.show_config else {}
        print(json.dumps(plan.to_json() | told))
        return 0
    parts = [shown_config(config, whole=True).rstrip()] if namespace.show_config else []
    parts += [describe(plan, config.taper, unicode=speaks_unicode()), "\n".join(stage_lines(plan))]
    parts += ["\n".join(compare_lines(found))] if found else []
    print("\n\n".join([*parts, "\n".join(explain(plan))]))
    return 0


def _with_global_batch(config: Config, data: int) -> Config:
    """A pipeline of one micro-batch, training's own default, has all cuts take as long: plan some, and say so."""
    training, stages = config.training, config.parallel.pipeline_model_parallel_size
    if training.global_batch_size is not None or stages == 1:
        return config
    count = ASSUMED_MICRO_BATCHES * stages
    batch = count * training.micro_batch_size * data
    tell(
        [
            f"no --global-batch-size is given: planned with {batch}, {ASSUMED_MICRO_BATCHES} micro-batches a stage; "
            f"train itself would take {training.micro_batch_size * data}, one micro-batch a step"
        ]
    )
    return replace(config, training=replace(training, global_batch_size=batch))


def build_parser() -> Parser:
    text = "Each layer's width, each unit's cost, and the stages that the units are cut into."
    parser = config_parser("plan", text, EXAMPLES)
    # Megatron's own --profile starts a profiler in training; here it measures.
    group = parser.add_argument_group("plan", conflict_handler="resolve")
    group.add_argument("--json", action="store_true", help="print JSON instead of tables")
    group.add_argument(
        "--world-size", type=integer(), metavar="N", help="ranks of the run (default: tensor x pipeline)"
    )
    group.add_argument("--compare", action="store_true", help="cut by the rules of DeepSpeed and Megatron as well")
    group.add_argument(
        "--plot", metavar="FILE", help="draw the taper by stage and a step as a Gantt chart: .png, .svg or .pdf"
    )
    group.add_argument("--search", action="store_true", help="rank every layout on --gpus devices instead")
    group.add_argument("--gpus", type=integer(), metavar="N", help="devices to search layouts for")
    group.add_argument(
        "--profile", metavar="FILE", help="measure the units on this device instead, and store the times"
    )
    group.add_argument(
        "--from-run",
        metavar="DIR",
        help="set the times that a run logged in its --log-dir beside the plan's; --profile FILE stores them",
    )
    return parser


def _search(namespace: argparse.Namespace, config: Config) -> int:
    """Every layout on so many devices; an H100 where no --hardware is given."""
    if namespace.gpus is None:
        raise ConfigError("--search = true needs 1 device or more to search for; give --gpus N")
    devices = namespace.gpus
    hardware = find_hardware(config.parallel.hardware or DEFAULT_HARDWARE)
    limit = parse_bytes(config.parallel.gpu_memory) if config.parallel.gpu_memory else None
    shape = build_shape(config, vocab_size(config))
    found = search_layouts(config, shape, devices=devices, hardware=hardware, memory_limit=limit)
    if namespace.json:
        told = {"tokens": found.tokens, "hardware": hardware.name}
        told |= {key: [asdict(layout) for layout in getattr(found, key)] for key in ("ranked", "refused")}
        print(json.dumps(told))
        return 0 if found.ranked else USER_ERROR
    print(f"{devices} x {hardware.name}, {gibibytes(limit or hardware.memory_bytes)} each")
    print("\n".join(search_lines(found, SHOWN_LAYOUTS)), flush=True)
    if not found.ranked:
        raise PlanError(
            f"--search = none of {len(found.refused)} layouts on {devices} devices can be run; see above what refused "
            "them, or give more --gpus"
        )
    return 0


def _rival_json(rival: Rival) -> dict[str, object]:
    if rival.plan is None:
        return {"rule": rival.name, "reason": rival.reason}
    return {
        "rule": rival.name,
        "stages": [[own.start, own.stop] for own in rival.plan.stages],
        "slowest_over_mean": rival.slowest_over_mean,
        "step_time": rival.step_time,
        "peak_bytes": rival.peak_bytes,
    }


def _world_size(namespace: argparse.Namespace, parallel: ParallelConfig) -> int:
    if namespace.world_size is None:
        smallest = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size
        # Alone, --profile measures for others; under torchrun it is the world that is going to train.
        started = read_launch().world_size if namespace.profile is not None else 1
        return smallest if started == 1 else started
    return int(namespace.world_size)
