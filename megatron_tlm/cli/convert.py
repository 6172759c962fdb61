"""`megatron-tlm convert`: a checkpoint rewritten for another layout."""

import sys
import time
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path

from megatron_tlm.checkpoint.load import check_complete, find
from megatron_tlm.checkpoint.manifest import Manifest
from megatron_tlm.checkpoint.relayout import convert
from megatron_tlm.checkpoint.verify import verify
from megatron_tlm.cli.meter import Meter
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.errors import ConfigError

VERIFY_BY_DEFAULT_BYTES = 1 << 30

# Flags of Megatron's converter that say nothing here: there is one format, read and written by one program.
_WITHOUT_EFFECT = {
    "model_type": ("GPT",),
    "loader": ("megatron", "mcore", "core", "legacy"),
    "saver": ("megatron", "mcore", "core", "legacy"),
    "megatron_path": None,
    "max_queue_size": None,
}

EXAMPLES = """\
examples:
  megatron-tlm convert --load-dir run --save-dir run-one-rank \\
      --target-tensor-parallel-size 1 --target-pipeline-parallel-size 1
  megatron-tlm convert --load-dir run --save-dir run-2x4 --ckpt-step 2000 --verify \\
      --target-tensor-parallel-size 4 --target-pipeline-parallel-size 2

Training loads a checkpoint at any layout as it is: converting is for copying it elsewhere in the files of another
layout. Weights, float32 masters and every optimizer state are kept bit for bit, and so are step and sample position.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of the command, under the names of Megatron's converter."""
    parser.add_argument("--load-dir", type=Path, required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--save-dir", type=Path, required=True, metavar="DIR", help="folder to write, not the same")
    parser.add_argument(
        "--target-tensor-parallel-size", type=int, metavar="N", help="ranks that share each layer (default: as saved)"
    )
    parser.add_argument(
        "--target-pipeline-parallel-size", type=int, metavar="N", help="pipeline stages (default: as saved)"
    )
    parser.add_argument(
        "--target-data-parallel-size", type=int, metavar="N", help="ranks that share the rows (default: as saved)"
    )
    parser.add_argument(
        "--ckpt-step", type=int, metavar="STEP", help="step to convert (default: the newest complete one)"
    )
    parser.add_argument(
        "--verify",
        action=BooleanOptionalAction,
        default=None,
        help="read both again and compare every tensor's hash (default: up to 1 GiB)",
    )
    for name in _WITHOUT_EFFECT:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=SUPPRESS)


def main(arguments: Sequence[str]) -> int:
    """Parse and run; exit code 0, mistakes as TlmError."""
    parser = Parser(prog=program("convert"), description=__doc__, epilog=EXAMPLES)
    add_arguments(parser)
    return run(parser.parse(arguments))


def run(args: Namespace) -> int:
    """Convert, tell what came of it, and prove it if asked."""
    for note in _notes(args):
        print(f"note: {note}", file=sys.stderr)
    source = find(args.load_dir, args.ckpt_step, tell=lambda text: print(f"note: {text}", file=sys.stderr))
    before = check_complete(source)
    grid = before.facts.grid
    print(f"source  {_summary(source, before)}", flush=True)
    started = time.perf_counter()
    with Meter("converting") as meter:
        target = convert(
            args.load_dir,
            args.save_dir,
            tensor=_or(args.target_tensor_parallel_size, grid.tensor),
            pipe=_or(args.target_pipeline_parallel_size, grid.pipe),
            data=args.target_data_parallel_size,
            step=before.facts.step,
            progress=meter,
        )
    seconds = time.perf_counter() - started
    after = check_complete(target)
    print(f"target  {_summary(target, after)}")
    print(f"        {len(after.tensors)} tensors in {seconds:.1f} s, {after.size_bytes / 1e6 / seconds:.0f} MB/s")
    if args.verify or (args.verify is None and after.size_bytes <= VERIFY_BY_DEFAULT_BYTES):
        with Meter("verifying") as meter:
            count = verify(source, target, progress=meter)
        print(f"        all {count} tensors have the source's hashes")
    else:
        print("        not verified; --verify reads both again and compares every tensor")
    return 0


def _notes(args: Namespace) -> list[str]:
    """What is said of flags without effect; ConfigError where the value asks for something that is not done."""
    notes = []
    for name, harmless in _WITHOUT_EFFECT.items():
        value = getattr(args, name)
        if value is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        if harmless and value not in harmless:
            raise ConfigError(
                f"{flag} = {value} asks for another format or model than this converter knows; leave the flag out"
            )
        notes.append(f"{flag} {value} has no effect, there is one checkpoint format")
    return notes


def _summary(path: Path, manifest: Manifest) -> str:
    grid, parts = manifest.facts.grid, len(manifest.parts)
    layout = f"tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data}"
    return f"{path}: {layout}, {parts} part{'s' if parts > 1 else ''}, {manifest.size_bytes / 1e6:.1f} MB"


def _or(value: int | None, saved: int) -> int:
    return saved if value is None else value
