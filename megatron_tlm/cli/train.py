"""`megatron-tlm train`: the configuration checked and told, the plan printed, and then the run itself."""

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from megatron_tlm.cli.failure import USER_ERROR, ended_before, is_first_rank, words_for_other_nodes
from megatron_tlm.cli.options import config_parser, shown_config, speaks_unicode, tell, vocab_size
from megatron_tlm.cli.plan_table import describe
from megatron_tlm.comm.torchrun import stop_with_launcher
from megatron_tlm.config.check import check_training
from megatron_tlm.config.flags import read_flags
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.load import load, notes
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.explain import counted

EXAMPLES = """\
  one process:
  megatron-tlm train --preset tiny --data-path corpus_text_document --train-iters 100

  four ranks of one machine, two for each layer and two stages:
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm train --config run.yaml \\
      --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --save checkpoints --save-interval 100

  on from the newest checkpoint, at any layout:
  torchrun --standalone --nproc-per-node 2 -m megatron_tlm train --config run.yaml --load checkpoints

  without data, to try a layout:
  torchrun --standalone --nproc-per-node 8 -m megatron_tlm train --preset 440m --mock-data --train-iters 5
"""


def main(arguments: Sequence[str]) -> int:
    """Train as asked. What flags alone decide is refused before torch is imported, files before anything is told."""
    stop_with_launcher()
    if ended_before():
        return USER_ERROR
    text = "Train a tapered language model, on this process or on every rank that torchrun started."
    with words_for_other_nodes():
        namespace = config_parser("train", text, EXAMPLES).parse(arguments)
        flags = read_flags(namespace)
        config = load(flags)
        data = check_training(config, launched_ranks())
        plan = build_plan(config, vocab_size(config), data=data)

    def announce() -> None:
        if is_first_rank():
            tell(notes(flags, config))
            told = shown_config(config, whole=namespace.show_config)
            print(f"{told}\n{describe(plan, config.taper, unicode=speaks_unicode())}\n", flush=True)

    _say_starting()
    from megatron_tlm.train.train import train

    return train(config, announce)


def _say_starting() -> None:
    """One line a node: what comes next takes seconds, and minutes where a disk or a machine is busy."""
    launch = read_launch()
    if os.environ.get("LOCAL_RANK", str(launch.rank)) == "0":
        ranks, here = counted(launch.world_size, "rank"), os.environ.get("LOCAL_WORLD_SIZE", str(launch.world_size))
        share = ranks if here == str(launch.world_size) else f"{here} of {ranks}"
        line = f"starting {share} on {socket.gethostname()}: importing torch and deepspeed"
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def launched_ranks() -> int:
    """The world size that the launcher announces; 1 without a launcher."""
    return read_launch().world_size
