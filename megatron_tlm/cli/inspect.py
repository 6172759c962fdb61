"""`megatron-tlm inspect`: what a checkpoint is, what it lacks, and in what it differs from another."""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_tlm.cli.model_flags import add_ckpt_step
from megatron_tlm.cli.options import note
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.report.scale import size_text

if TYPE_CHECKING:
    from megatron_tlm.checkpoint.compare import Difference
    from megatron_tlm.checkpoint.describe import Description

INCOMPLETE = DIFFERENT = 1
_SHOWN = 20

EXAMPLES = """\
examples:
  megatron-tlm inspect checkpoints
  megatron-tlm inspect checkpoints --ckpt-step 2000 --tensors
  megatron-tlm inspect checkpoints/step-00002000 --diff checkpoints/step-00001000
  megatron-tlm inspect checkpoints --json | jq .parameters

Every file is read, a few MB at a time, to compare it with the hash of the day it was written: about a second per GB
and core. With --no-check-hashes the manifest and the files' lengths are looked at alone. The exit code is 0, or 1 where
something is missing, damaged or, with --diff, different.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("inspect"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("checkpoint", metavar="CKPT", help="folder a run was saved in, or one of its step-* folders")
    add_ckpt_step(parser, "look at")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--diff", metavar="OTHER", help="compare with another checkpoint, whatever its layout")
    parser.add_argument("--no-check-hashes", action="store_true", help="look at the files' lengths alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Describe or compare as asked."""
    args = build_parser().parse(arguments)
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.checkpoint.describe import describe

    description = describe(Path(args.checkpoint), args.ckpt_step, tell=note, hashes=not args.no_check_hashes)
    if args.diff is not None:
        return _diff(args, description)
    record = description.to_json()
    if args.json:
        if args.tensors:
            record["tensors"] = {key: _tensor_json(item) for key, item in _tensors(description)}
        print(json.dumps(record))
    else:
        for line in summary(description):
            print(line)
        if args.tensors:
            _print_tensors(description)
    return 0 if record["complete"] else INCOMPLETE


def summary(description: "Description") -> Iterator[str]:
    """The report of one checkpoint, line by line."""
    facts, manifest = description.manifest.facts, description.manifest
    shape, grid = facts.shape, facts.grid
    yield f"checkpoint  {description.path}"
    yield f"progress    step {facts.step}, {facts.consumed_samples:,} samples, {facts.consumed_tokens:,} tokens"
    yield (
        f"model       {shape.mixer}, {description.parameters:,} parameters, {shape.num_layers} layers x "
        f"{shape.hidden_size}, {shape.num_attention_heads} heads of {shape.kv_channels} "
        f"({shape.num_query_groups} key/value), vocabulary {shape.vocab_size:,}"
        f"{', tied' if shape.tied_embeddings else ''}"
    )
    taper = "" if len(set(shape.widths)) == 1 else f", mean {sum(shape.widths) / shape.num_layers:g}"
    yield f"widths      {runs(shape.widths)}{taper}"
    yield (
        f"layout      tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data} = {grid.size} ranks, "
        f"ZeRO {facts.zero_stage}"
    )
    for number, stage in enumerate(facts.stages):
        units = description.units[stage.start : stage.stop]
        count = sum(unit.num_parameters for unit in units)
        yield f"stage {number:<6}{units[0].name} .. {units[-1].name}, {len(units)} units, {count:,} parameters"
    for item in description.roles:
        yield f"{item.role:<12}{item.tensors} tensors, {'/'.join(item.dtypes)}, {size_text(item.size_bytes)}"
    yield f"files       {len(manifest.files)}, {size_text(manifest.size_bytes)} in all"
    for name, record in manifest.files.items():
        yield f"            {name}  {size_text(record.size_bytes)}"
    missing = [*description.faults, *(f"{role}/{name} was not saved" for name, role in description.absent)]
    for label, lines in (("MISSING", missing), ("note", list(description.notes))):
        yield from (f"{label:<12}{line}" for line in lines)
    if not missing:
        state = "as it was written, by hash" if description.hashed else "at full length; contents were not looked at"
        yield f"complete    every file is there {state}"


def runs(widths: Sequence[int]) -> str:
    """`192, 160 x 2, 96`: equal neighbours once."""
    groups: list[tuple[int, int]] = []
    for width in widths:
        count = groups.pop()[1] if groups and groups[-1][0] == width else 0
        groups.append((width, count + 1))
    return ", ".join(f"{width}" if count == 1 else f"{width} x {count}" for width, count in groups)


def _tensors(description: "Description") -> Iterator[tuple[str, Any]]:
    return ((f"{role}/{name}", record) for (name, role), record in description.manifest.tensors.items())


def _tensor_json(record: Any) -> dict[str, Any]:
    return {"dtype": record.dtype, "shape": record.shape, "files": sorted({piece.file for piece in record.pieces})}


def _print_tensors(description: "Description") -> None:
    rows = [
        (key, record.dtype, "x".join(map(str, record.shape)) or "scalar", size_text(record.size_bytes), record.pieces)
        for key, record in _tensors(description)
    ]
    width, extent = max(len(row[0]) for row in rows), max(len(row[2]) for row in rows)
    for key, dtype, shape, size, pieces in rows:
        files = sorted({piece.file.removesuffix(".safetensors") for piece in pieces})
        where = files[0] if len(files) == 1 else f"{len(pieces)} pieces in {files[0]} .. {files[-1]}"
        print(f"{key:<{width}}  {dtype:<4}  {shape:>{extent}}  {size:>9}  {where}")


def _diff(args: Namespace, description: "Description") -> int:
    from megatron_tlm.checkpoint.compare import differences, fact_differences
    from megatron_tlm.checkpoint.load import Reader
    from megatron_tlm.cli.meter import Meter
    from megatron_tlm.train.logs.records import finite

    with Reader(description.path) as ours, Reader(_other(args)) as theirs:
        facts = fact_differences(ours.manifest.facts, theirs.manifest.facts)
        with Meter("comparing") as meter:
            found = list(differences(ours, theirs, progress=meter))
        paths, count = (ours.path, theirs.path), len(ours.manifest.tensors.keys() | theirs.manifest.tensors.keys())
    if args.json:
        listed = {"facts": [list(item) for item in facts], "tensors": [finite(asdict(item)) for item in found]}
        print(json.dumps({"paths": [str(path) for path in paths], "compared": count, **listed}))
    else:
        _print_diff(paths, facts, found, count, everything=args.tensors)
    return DIFFERENT if found else 0


def _other(args: Namespace) -> Path:
    from megatron_tlm.checkpoint.load import find

    return find(Path(args.diff), tell=note, hashes=not args.no_check_hashes)


def _print_diff(
    paths: tuple[Path, Path],
    facts: list[tuple[str, object, object]],
    found: "list[Difference]",
    count: int,
    *,
    everything: bool,
) -> None:
    print(f"ours    {paths[0]}\ntheirs  {paths[1]}")
    for address, mine, other in facts:
        print(f"fact    {address}: {mine} and {other}")
    # First what cannot be compared in numbers, then the largest differences.
    ordered = sorted(found, key=lambda item: (item.relative is None, item.relative or 0.0), reverse=True)
    for item in ordered if everything else ordered[:_SHOWN]:
        told = item.reason
        if item.elements is not None:
            told += f", {item.differing} of {item.elements} elements, largest {item.largest:.3g}"
            told += f", relative {item.relative:.3g}"
        print(f"tensor  {item.role}/{item.name}: {told}")
    if len(ordered) > _SHOWN and not everything:
        print(f"        and {len(ordered) - _SHOWN} more; --tensors lists all")
    print(f"        {count - len(found)} of {count} tensors are equal")
