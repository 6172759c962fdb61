"""`megatron-tlm export`: a checkpoint in other programs' formats, Hugging Face's and llama.cpp's."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_tlm.cli.meter import Meter
from megatron_tlm.cli.model_flags import LOAD_HELP, add_ckpt_step
from megatron_tlm.cli.options import note
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.errors import ConfigError, TlmError
from megatron_tlm.report.scale import size_text

FORMATS = ("hf", "gguf")
DTYPES = ("float32", "bfloat16", "float16")

EXAMPLES = """\
examples:
  megatron-tlm export --format hf --load checkpoints --save-dir my-model
  megatron-tlm export --format hf --load checkpoints --save-dir my-model-padded --flavour padded --dtype bfloat16
  megatron-tlm export --format gguf --load checkpoints --output my-model.gguf --dtype float16

A model of one MLP width becomes a stock Llama. A tapered one is written in one of three flavours:
  tapered   own widths and a short file of remote code (AutoModelForCausalLM with trust_remote_code=True); the default
  padded    every MLP zero-padded to the widest: a stock Llama with the same logits, and more weights
  deci      own widths in DeciLM's spelling, native in vLLM
Gated Attention, Titans and Hope come with the whole model as remote code, whatever their widths.
GGUF files hold own widths as architecture `deci`, which llama.cpp loads, or one width as `llama`.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("export"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--format", required=True, choices=FORMATS, help="hf: a Hugging Face directory; gguf: a file for llama.cpp"
    )
    parser.add_argument("--load", required=True, metavar="DIR", help=LOAD_HELP)
    add_ckpt_step(parser, "export")
    parser.add_argument(
        "--output", "--save-dir", required=True, metavar="PATH", help="new directory (hf) or file (gguf) to write"
    )
    parser.add_argument("--flavour", choices=("tapered", "padded", "deci"), help="hf: how a tapered model is written")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: as saved)")
    parser.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="hf: largest file, as 5GB or 500MB")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Export and tell what came of it."""
    args = build_parser().parse(arguments)
    max_file_bytes = parse_size(args.max_shard_size, "--max-shard-size")
    if args.format == "gguf" and args.flavour is not None:
        raise ConfigError(f"--flavour = {args.flavour} is of --format hf alone; leave it out")
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.checkpoint.load import find

    source = find(Path(args.load), args.ckpt_step, tell=note)
    lines = _to_gguf(source, args) if args.format == "gguf" else _to_hugging_face(source, args, max_file_bytes)
    print(f"source  {source}")
    for line in lines:
        print(line)
    return 0


def _to_hugging_face(source: Path, args: Namespace, max_file_bytes: int) -> list[str]:
    from megatron_tlm.export.hugging_face import export_hugging_face, positions_of
    from megatron_tlm.export.tokenizers import tokenizer_files

    saved = _tokenizer(source)
    tokenizer = tokenizer_files(saved.kind, saved.file, saved.end_id, positions_of(saved.config))
    if tokenizer is None:
        note("no tokenizer was saved with this checkpoint, so none is written")
    with Meter("exporting") as meter:
        exported = export_hugging_face(
            source,
            Path(args.output),
            flavour=args.flavour,
            dtype=_dtype(args.dtype),
            tokenizer=tokenizer,
            max_file_bytes=max_file_bytes,
            progress=meter,
        )
    told = f"target  {exported.path}: {exported.flavour}, {size_text(exported.weight_bytes)} of weights"
    return [told, f"        {', '.join(exported.files)}", *(f"note    {remark}" for remark in exported.notes)]


def _to_gguf(source: Path, args: Namespace) -> list[str]:
    from megatron_tlm.export.gguf import export_gguf

    saved = _tokenizer(source)
    with Meter("exporting") as meter:
        exported = export_gguf(
            source,
            Path(args.output),
            dtype=_dtype(args.dtype),
            tokenizer=saved.file,
            end_id=saved.end_id,
            progress=meter,
        )
    told = f"target  {exported.path}: {exported.architecture}, {size_text(exported.weight_bytes)} of weights"
    return [told, *(f"note    {remark}" for remark in exported.notes)]


def parse_size(text: str, flag: str) -> int:
    """Bytes of `5GB`, `500MB` or a plain number."""
    match = re.fullmatch(r"(\d+)\s*([kMG]?)B?", text)
    if not match or not int(match[1]):
        raise ConfigError(f"{flag} = {text} is not a size; give one such as 5GB or 500MB")
    return int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]]


@dataclass(frozen=True)
class _Saved:
    """The tokenizer saved with a checkpoint, and the run's configuration."""

    kind: str | None
    file: Path | None
    end_id: int | None
    config: Mapping[str, Any]


def _tokenizer(source: Path) -> _Saved:
    from megatron_tlm.checkpoint.manifest import read_manifest
    from megatron_tlm.data.tokenizers import load_tokenizer

    manifest = read_manifest(source)
    config = manifest.facts.config
    data = config.get("data")
    kind = data.get("tokenizer_type") if isinstance(data, dict) else None
    file = source / manifest.tokenizer if manifest.tokenizer else None
    end_id = None
    if file is not None or kind == "ByteTokenizer":
        try:
            end_id = load_tokenizer(kind, file).eod_id
        except TlmError as error:
            note(f"the tokenizer has no end of text that is known ({error})")
    return _Saved(kind, file, end_id, config)


def _dtype(name: str | None) -> Any:
    import torch

    return getattr(torch, name) if name else None
