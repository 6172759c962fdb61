"""`megatron-tlm plan`: what a configuration comes to, in integers, before anything starts."""

import argparse
import json
from collections.abc import Sequence

from megatron_tlm.cli.options import config_parser, speaks_unicode, vocab_size
from megatron_tlm.cli.plan_table import describe
from megatron_tlm.config.check import check
from megatron_tlm.config.flags import read_flags
from megatron_tlm.config.load import load
from megatron_tlm.config.parser import Parser
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError
from megatron_tlm.plan.build import build_plan

EXAMPLES = """\
  megatron-tlm plan --preset 1.3b --pipeline-model-parallel-size 4
  megatron-tlm plan --config run.yaml --taper-start 1.75 --taper-end 0.25
  megatron-tlm plan --preset 3b --tensor-model-parallel-size 4 --world-size 64 --json
"""


def main(arguments: Sequence[str]) -> int:
    """Print the plan as a table, or as JSON for programs. Takes every flag of `train`, and two of its own."""
    parser = build_parser()
    namespace = parser.parse(arguments)
    config = load(read_flags(namespace))
    data = check(config, _world_size(namespace, config.parallel))
    plan = build_plan(config, vocab_size(config), data=data)
    if namespace.json:
        print(json.dumps(plan.to_json()))
    else:
        print(describe(plan, config.taper, unicode=speaks_unicode()))
    return 0


def build_parser() -> Parser:
    text = "Each layer's width, each unit's cost, and the stages that the units are cut into."
    parser = config_parser("plan", text, EXAMPLES)
    group = parser.add_argument_group("plan")
    group.add_argument("--json", action="store_true", help="print JSON: widths, units, stages, imbalance")
    group.add_argument("--world-size", metavar="N", help="ranks of the run (default: tensor x pipeline)")
    return parser


def _world_size(namespace: argparse.Namespace, parallel: ParallelConfig) -> int:
    if namespace.world_size is None:
        return parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size
    size = int(from_flag(namespace.world_size, int, "--world-size"))
    if size < 1:
        raise ConfigError(f"--world-size = {size} is below 1; give the number of ranks")
    return size
