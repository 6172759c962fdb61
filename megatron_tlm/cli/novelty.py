"""`megatron-tlm novelty`: how new what each layer writes into the residual stream is, layer by layer."""

import json
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from megatron_tlm.cli.layout_flags import add_layout_flags, layout_of, number
from megatron_tlm.cli.options import check_plot
from megatron_tlm.cli.ranks import on_ranks
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.errors import ConfigError

EXAMPLES = """\
examples:
  megatron-tlm novelty --load checkpoints --data-path heldout_text_document --plot novelty.png
  megatron-tlm novelty --load checkpoints --text heldout.jsonl --num-tokens 2048 --json
  megatron-tlm novelty --hugging-face gpt2 --text wiki.test.txt
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm novelty --load checkpoints --data-path heldout \\
      --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2

rho_block(l) = cos(h_{l+1} - h_l, h_l) and rho_mlp(l) = cos(MLP_l(z_l), h_l), means over tokens, where z_l is the stream
between mixer and MLP. Near 0 a layer writes new directions, above 0 it adds to what is there; r is Pearson's, with
depth (arXiv:2606.23670).
While a model trains: --novelty-interval of `megatron-tlm train`.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("novelty"), description=__doc__, epilog=EXAMPLES)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--load", metavar="DIR", help="folder a run was saved in")
    model.add_argument("--hugging-face", metavar="DIR", help="a Hugging Face model's directory")
    parser.add_argument("--ckpt-step", metavar="N", help="with --load: step to load (default: the newest complete one)")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="with --hugging-face: run the code that comes with the model"
    )
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--data-path", metavar="PREFIX", help="prefix of a .bin/.idx pair")
    text.add_argument("--text", metavar="FILE", help="JSON lines, .txt or Parquet, read by the model's tokenizer")
    parser.add_argument(
        "--json-key", default="text", metavar="KEY", help="what holds a document's text (default: text)"
    )
    parser.add_argument("--num-tokens", default="65536", metavar="N", help="tokens to measure on (default: 65536)")
    parser.add_argument("--seq-length", metavar="N", help="tokens of a window (default: the run's; Hugging Face: 1024)")
    parser.add_argument("--micro-batch-size", default="8", metavar="N", help="windows at a time (default: 8)")
    add_layout_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure as asked: a table or JSON on stdout."""
    args = build_parser().parse(arguments)
    for name in ("ckpt_step", "num_tokens", "seq_length", "micro_batch_size"):
        number(args, name, 0 if name == "ckpt_step" else 1)
    if args.plot is not None:
        check_plot(args.plot)
    if args.trust_remote_code and not args.hugging_face:
        raise ConfigError("--trust-remote-code = true does nothing with --load; leave it out")
    parallel = layout_of(args)
    return on_ranks(partial(_measure, args, parallel), parallel)


def _measure(args: Namespace, parallel: ParallelConfig, launch: Launch) -> int:
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.cli.novelty_model import of_checkpoint, of_hugging_face

    if args.hugging_face and launch.world_size > 1:
        raise ConfigError(
            f"--hugging-face = {args.hugging_face} runs on one process, not on {launch.world_size}; start it without "
            "torchrun"
        )
    found = of_hugging_face(args) if args.hugging_face else of_checkpoint(args, parallel, launch)
    if launch.rank == 0:
        print(json.dumps(found) if args.json else table(found), flush=True)
        if args.plot:
            from megatron_tlm.cli.novelty_plot import write_novelty_plot

            write_novelty_plot(found, Path(args.plot))
    return 0


def table(found: dict[str, Any]) -> str:
    """A row per layer, with a bar of rho_mlp, and r with depth below."""
    lines = [
        f"{found['model']} on {found['data']}, {found['num_tokens']:,} tokens in windows of {found['seq_length']}",
        "layer  rho_block    rho_mlp",
    ]
    for layer, (block, mlp) in enumerate(zip(found["rho_block"], found["rho_mlp"], strict=True)):
        lines.append(f"{layer:5d} {block:10.4f} {mlp:10.4f}")
    shown = ("none" if r is None else f"{r:.2f}" for r in (found["pearson_block"], found["pearson_mlp"]))
    lines.append("r with depth: rho_block {}, rho_mlp {}".format(*shown))
    return "\n".join(lines)
