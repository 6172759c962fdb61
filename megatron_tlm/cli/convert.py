"""`megatron-tlm convert`: a checkpoint rewritten for another layout."""

import time
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_tlm.cli.meter import Meter
from megatron_tlm.cli.model_flags import add_ckpt_step
from megatron_tlm.cli.options import note, tell
from megatron_tlm.cli.target_stages import target_stages
from megatron_tlm.config.parser import Parser, integer, program
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.resolve import check_divisible, is_divisible
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.report.scale import size_text

if TYPE_CHECKING:
    from megatron_tlm.checkpoint.manifest import Manifest

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
  megatron-tlm convert --load-dir run --save-dir run-logical --logical
  megatron-tlm convert --load-dir run --save-dir run-3 --target-tensor-parallel-size 3 --pad-widths
  megatron-tlm convert --load-dir run --save-dir run-2x4 --ckpt-step 2000 --verify \\
      --target-tensor-parallel-size 4 --target-pipeline-parallel-size 2

Training loads a checkpoint at any layout as it is: converting is for copying it elsewhere in the files of another
layout. Weights, float32 masters and every optimizer state are kept bit for bit, and so are step and sample position.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of the command, under the names of Megatron's converter."""
    parser.add_argument("--load-dir", type=_folder, required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--save-dir", type=_folder, required=True, metavar="DIR", help="folder to write, not the same")
    parser.add_argument(
        "--target-tensor-parallel-size",
        type=integer(),
        metavar="N",
        help="ranks that share each layer (default: as saved)",
    )
    parser.add_argument(
        "--target-pipeline-parallel-size", type=integer(), metavar="N", help="pipeline stages (default: as saved)"
    )
    parser.add_argument(
        "--target-data-parallel-size", type=integer(), metavar="N", help="ranks that share the rows (default: as saved)"
    )
    parser.add_argument(
        "--target-zero-stage", type=int, choices=range(4), help="ZeRO stage to note for training on (default: as saved)"
    )
    parser.add_argument("--logical", action="store_true", help="one part with whole tensors: all target sizes are 1")
    parser.add_argument(
        "--pad-widths",
        action="store_true",
        help="add neurons of zeros to MLPs that the tensor degree does not divide; the function stays the same",
    )
    add_ckpt_step(parser, "convert")
    parser.add_argument(
        "--verify",
        action=BooleanOptionalAction,
        default=None,
        help="read both again and compare every tensor's hash (default: up to 1 GiB)",
    )
    parser.add_argument(
        "--workers",
        type=integer(),
        metavar="N",
        help="files written and read at a time, some 10 MB of memory each (default: the cores, up to 4)",
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
    tell(_notes(args))
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.checkpoint.load import check_complete, find
    from megatron_tlm.checkpoint.relayout import convert
    from megatron_tlm.checkpoint.verify import verify
    from megatron_tlm.checkpoint.widen import padded_widths

    source = find(args.load_dir, args.ckpt_step, tell=note)
    before = check_complete(source)
    grid = before.facts.grid
    print(f"source  {_summary(source, before)}", flush=True)
    wanted = _target(args, grid)
    if not args.pad_widths:
        _check_widths(before.facts.shape, wanted.tensor)
    shape = before.facts.shape
    if args.pad_widths:
        shape = replace(shape, widths=padded_widths(shape, wanted.tensor))
    stages, remark = target_stages(before.facts, shape, wanted, args.target_zero_stage)
    if remark is not None:
        note(remark)
    started = time.perf_counter()
    with Meter("converting") as meter:
        target = convert(
            args.load_dir,
            args.save_dir,
            tensor=wanted.tensor,
            pipe=wanted.pipe,
            data=wanted.data,
            zero=args.target_zero_stage,
            stages=stages,
            pad_widths=args.pad_widths,
            step=before.facts.step,
            progress=meter,
            workers=args.workers,
            hashes=False,  # find has just read every byte
        )
    seconds = time.perf_counter() - started
    after = check_complete(target)
    print(f"target  {_summary(target, after)}")
    print(f"        {len(after.tensors)} tensors in {seconds:.1f} s, {size_text(after.size_bytes / seconds)}/s")
    for line in _padding(before, after):
        print(line)
    if args.verify or (args.verify is None and after.size_bytes <= VERIFY_BY_DEFAULT_BYTES):
        with Meter("verifying") as meter:
            count = verify(source, target, widths=after.facts.shape.widths, progress=meter, workers=args.workers)
        print(f"        all {count} tensors have the source's hashes")
    else:
        print("        not verified; --verify reads both again and compares every tensor")
    return 0


def _folder(text: str) -> Path:
    """An empty value, as of a variable of the shell that is not set, would mean this folder."""
    if not text:
        raise ArgumentTypeError("= '' but a folder is needed; give one")
    return Path(text)


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


def _summary(path: Path, manifest: "Manifest") -> str:
    grid, parts = manifest.facts.grid, len(manifest.parts)
    layout = f"tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data}"
    return f"{path}: {layout}, {parts} part{'s' if parts > 1 else ''}, {size_text(manifest.size_bytes)}"


def _target(args: Namespace, saved: Grid) -> Grid:
    """The grid that was asked for; ConfigError for wishes that contradict each other."""
    sizes = {}
    for name, axis in (("tensor", "tensor"), ("pipeline", "pipe"), ("data", "data")):
        given = getattr(args, f"target_{name}_parallel_size")
        if args.logical and given not in (None, 1):
            raise ConfigError(f"--target-{name}-parallel-size = {given} but --logical means 1; leave one of them out")
        sizes[axis] = 1 if args.logical else getattr(saved, axis) if given is None else given
    zero = args.target_zero_stage
    if zero is not None and zero > 1 and sizes["pipe"] > 1:
        raise ConfigError(
            f"--target-zero-stage = {zero} but with {sizes['pipe']} pipeline stages DeepSpeed has ZeRO 0 and 1 alone; "
            "lower one of them"
        )
    return Grid(**sizes)


def _check_widths(shape: ModelShape, degree: int) -> None:
    """PlanError, with the way out that this command has, where nothing but MLP widths is in the way of a degree."""
    try:
        check_divisible(shape, degree)
    except PlanError as error:
        if shape.cms_levels == 1 and is_divisible(replace(shape, widths=(degree,) * shape.num_layers), degree):
            raise PlanError(f"{error}, or give --pad-widths") from None
        raise


def _padding(before: "Manifest", after: "Manifest") -> list[str]:
    """What --pad-widths added, and how training asks for the model that it made."""
    old, new = before.facts.shape, after.facts.shape
    if old.widths == new.widths:
        return []
    layers = [
        f"layer {layer} {narrow} -> {wide}"
        for layer, (narrow, wide) in enumerate(zip(old.widths, new.widths, strict=True))
        if narrow != wide
    ]
    added = sum(new.widths) - sum(old.widths)
    size_bytes = sum(item.size_bytes for item in after.tensors.values()) - sum(
        item.size_bytes for item in before.tensors.values()
    )
    return [
        f"        padded {', '.join(layers)}: {added} neurons of zeros, {3 * added * old.hidden_size:,} parameters, "
        f"{size_text(size_bytes)}",
        f"        train on with --layer-widths {' '.join(map(str, new.widths))}",
    ]
