"""`megatron-tlm doctor`: what would keep a run from starting, on this node or, under torchrun, on all of them."""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from megatron_tlm.cli.failure import is_first_rank
from megatron_tlm.cli.options import config_parser
from megatron_tlm.comm.torchrun import leave_word
from megatron_tlm.config.flags import read_flags
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.load import load
from megatron_tlm.config.parser import Parser, integer, real
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError, TlmError

if TYPE_CHECKING:
    from megatron_tlm.doctor.finding import Finding
    from megatron_tlm.doctor.run import Examined

SICK = 1
EXAMPLES = """\
  this machine:
  megatron-tlm doctor

  this machine for that run: folders, data, disk, plan
  megatron-tlm doctor --config run.yaml --world-size 8

  before torchrun waits for ever: the port here if this node hosts the meeting point, the way to it if not
  megatron-tlm doctor --rdzv-endpoint node0.cluster:29500 --nnodes 4 --wait 60

  all ranks, started as the run will be: same code and data, clocks, shared folders, every axis, a step
  torchrun --standalone --nproc-per-node 2 -m megatron_tlm doctor --config run.yaml
"""


def build_parser() -> Parser:
    text = "Checks a node, or under torchrun all ranks, and gives one verdict. Exit code 0, or 1 where it is not ready."
    parser = config_parser("doctor", text, EXAMPLES)
    group = parser.add_argument_group("doctor")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")
    group.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="the meeting point that torchrun will be given")
    group.add_argument(
        "--nnodes", type=integer(), metavar="N", help="nodes of the run (default: 1, or as torchrun says)"
    )
    group.add_argument(
        "--node-rank", type=integer(0), metavar="N", help="this node's number, where torchrun will be told it"
    )
    group.add_argument(
        "--wait", type=real(0), metavar="SECONDS", help="how long to try the meeting point (default: once)"
    )
    group.add_argument(
        "--world-size", type=integer(), metavar="N", help="ranks of the run (default: tensor x pipeline)"
    )
    group.add_argument("--no-step", action="store_true", help="under torchrun: leave out the step on made-up data")
    group.add_argument(
        "--timeout",
        type=real(0),
        default=30.0,
        metavar="SECONDS",
        help="under torchrun: how long ranks wait (default: 30)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Look, print, and say so by the exit code."""
    parser = build_parser()
    args = parser.parse(arguments)
    # A machine can be looked at without a model; any flag of a run asks for the run to be looked at.
    config, refusal = _configuration(args) if args.config or args.preset or args.given else (None, None)
    launch = read_launch()
    rehearsed = launch.world_size > 1 or "TORCHELASTIC_RUN_ID" in os.environ
    # Only now: torch takes seconds to import, and a mistyped flag should not wait for it.
    from megatron_tlm.doctor.finding import healthy, table, verdict

    findings = _together(args, config, refusal) if rehearsed else _alone(args, config, refusal)
    sound, sentence = healthy(findings), verdict(findings)
    if is_first_rank():
        if args.json:
            told = {"ready": sound, "verdict": sentence, "findings": [item.to_json() for item in findings]}
            print(json.dumps(told))
        else:
            print(f"{table(findings)}\n\n{sentence}", flush=True)
    if not sound:
        leave_word(sentence)
    return 0 if sound else SICK


def _configuration(args: Namespace) -> tuple[Config | None, TlmError | None]:
    """What was asked for, or why that cannot be: the machine can be looked at all the same."""
    flags = read_flags(args)
    try:
        return load(flags), None
    except TlmError as error:
        return None, error


def _alone(args: Namespace, config: Config | None, refusal: TlmError | None) -> "list[Finding]":
    return _local(args, config, refusal, _world_size(args, config), ranks_here=1)[0]


def _together(args: Namespace, config: Config | None, refusal: TlmError | None) -> "list[Finding]":
    from megatron_tlm.comm.meeting import meet
    from megatron_tlm.comm.torchrun import stop_with_launcher
    from megatron_tlm.doctor.rehearsal import Rehearsal, rehearse

    launch = read_launch()
    stop_with_launcher()
    timeout = timedelta(seconds=args.timeout)
    meeting = meet(launch.rank, launch.world_size, timeout)
    with meeting.at_work():
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        local, examined = _local(args, config, refusal, launch.world_size, ranks_here)
    mine = local if launch.local_rank == 0 else []
    told = None if refusal is None else " ".join(str(refusal).split())
    return rehearse(Rehearsal(meeting, config, examined, mine, timeout, step=not args.no_step, refusal=told))


def _local(
    args: Namespace, config: Config | None, refusal: TlmError | None, world_size: int, ranks_here: int
) -> "tuple[list[Finding], Examined | None]":
    """What this node says on its own."""
    import torch

    from megatron_tlm.doctor.machine import machine_findings
    from megatron_tlm.doctor.network import Endpoint, interfaces, joined, rendezvous
    from megatron_tlm.doctor.run import examine, unread

    gpus = torch.cuda.is_available()
    nodes = args.nnodes or int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    findings = [*machine_findings(), *interfaces(several_nodes=nodes > 1, gpus=gpus)]
    if args.rdzv_endpoint is not None:
        endpoint = Endpoint.parse(args.rdzv_endpoint)
        findings.append(rendezvous(endpoint, node_rank=args.node_rank, nodes=nodes, wait_seconds=args.wait or 0.0))
    elif args.node_rank is not None or args.wait is not None:
        raise ConfigError("--node-rank and --wait say nothing without a meeting point; give --rdzv-endpoint HOST:PORT")
    findings += joined()
    if refusal is not None:
        return [*findings, *unread(refusal)], None
    if config is None:
        return findings, None
    examined = examine(config, world_size, ranks_here)
    return [*findings, *examined.findings], examined


def _world_size(args: Namespace, config: Config | None) -> int:
    if args.world_size is not None or config is None:
        return args.world_size or 1
    return config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size
