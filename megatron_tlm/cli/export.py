"""`megatron-tlm export`: a checkpoint in other programs' formats."""

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_tlm.cli.inspect import size_text
from megatron_tlm.cli.meter import Meter
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError, TlmError

if TYPE_CHECKING:
    from megatron_tlm.export.tokenizers import TokenizerFiles

FORMATS = ("hf",)
DTYPES = ("float32", "bfloat16", "float16")

EXAMPLES = """\
examples:
  megatron-tlm export --format hf --load checkpoints --save-dir my-model
  megatron-tlm export --format hf --load checkpoints --save-dir my-model-padded --flavour padded --dtype bfloat16

A model of one MLP width becomes a stock Llama. A tapered one is written in one of three flavours:
  tapered   own widths and a short file of remote code (AutoModelForCausalLM with trust_remote_code=True); the default
  padded    every MLP zero-padded to the widest: a stock Llama with the same logits, and more weights
  deci      own widths in DeciLM's spelling, native in vLLM
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("export"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--format", required=True, choices=FORMATS, help="hf: a Hugging Face directory")
    parser.add_argument("--load", required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--ckpt-step", metavar="STEP", help="step to export (default: the newest complete one)")
    parser.add_argument("--save-dir", required=True, metavar="PATH", help="new directory to write")
    parser.add_argument("--flavour", choices=("tapered", "padded", "deci"), help="how a tapered model is written")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: as saved)")
    parser.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="largest file, as 5GB or 500MB")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Export and tell what came of it."""
    args = build_parser().parse(arguments)
    step = None if args.ckpt_step is None else from_flag(args.ckpt_step, int, "--ckpt-step")
    max_file_bytes = parse_size(args.max_shard_size, "--max-shard-size")
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    import torch

    from megatron_tlm.checkpoint.load import find
    from megatron_tlm.export.hugging_face import export_hugging_face

    source = find(Path(args.load), step, tell=_tell)
    tokenizer = _tokenizer(source, args)
    with Meter("exporting") as meter:
        exported = export_hugging_face(
            source,
            Path(args.save_dir),
            flavour=args.flavour,
            dtype=getattr(torch, args.dtype) if args.dtype else None,
            tokenizer=tokenizer,
            max_file_bytes=max_file_bytes,
            progress=meter,
        )
    print(f"source  {source}")
    print(f"target  {exported.path}: {exported.flavour}, {size_text(exported.weight_bytes)} of weights")
    print(f"        {', '.join(exported.files)}")
    for note in exported.notes:
        print(f"note    {note}")
    return 0


def parse_size(text: str, flag: str) -> int:
    """Bytes of `5GB`, `500MB` or a plain number."""
    match = re.fullmatch(r"(\d+)\s*([kMG]?)B?", text)
    if not match or not int(match[1]):
        raise ConfigError(f"{flag} = {text} is not a size; give one such as 5GB or 500MB")
    return int(match[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[match[2]]


def _tokenizer(source: Path, args: Namespace) -> "TokenizerFiles | None":
    """What was saved along, as files for the target; a note where there is nothing to write."""
    from megatron_tlm.checkpoint.manifest import read_manifest
    from megatron_tlm.data.tokenizers import load_tokenizer
    from megatron_tlm.export.hugging_face import positions_of
    from megatron_tlm.export.tokenizers import tokenizer_files

    manifest = read_manifest(source)
    data = manifest.facts.config.get("data")
    kind = data.get("tokenizer_type") if isinstance(data, dict) else None
    file = source / manifest.tokenizer if manifest.tokenizer else None
    end_id = None
    if file is not None or kind == "ByteTokenizer":
        try:
            end_id = load_tokenizer(kind, file).eod_id
        except TlmError as error:
            _tell(f"the tokenizer has no end of text that is known ({error})")
    files = tokenizer_files(kind, file, end_id, positions_of(manifest.facts.config))
    if files is None:
        _tell("no tokenizer was saved with this checkpoint, so none is written")
    return files


def _tell(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr, flush=True)
