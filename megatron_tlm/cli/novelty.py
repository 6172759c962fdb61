"""`megatron-tlm novelty`: how new what each layer writes into the residual stream is, layer by layer."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from megatron_tlm.cli.files import check_json, check_plot, writing
from megatron_tlm.cli.model_flags import (
    LOAD_HELP,
    add_json_key,
    add_layout_flags,
    add_output_flags,
    add_step_flags,
    add_window_flags,
    layout_of,
)
from megatron_tlm.cli.ranks import on_ranks
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.parser import Parser, integer, program
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
    model.add_argument("--load", metavar="DIR", help=LOAD_HELP)
    model.add_argument("--hugging-face", metavar="DIR", help="a Hugging Face model's directory")
    add_step_flags(parser)
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="with --hugging-face: run the code that comes with the model"
    )
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--data-path", metavar="PREFIX", help="prefix of a .bin/.idx pair")
    text.add_argument("--text", metavar="FILE", help="JSON lines, .txt or Parquet, read by the model's tokenizer")
    add_json_key(parser)
    parser.add_argument(
        "--num-tokens", type=integer(), default=65536, metavar="N", help="tokens to measure on (default: 65536)"
    )
    add_window_flags(parser, "the run's; of Hugging Face 1024")
    add_layout_flags(parser)
    add_output_flags(parser, picture="both cosines over the layers")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure as asked: a table or JSON on stdout."""
    args = build_parser().parse(arguments)
    check_json(args.json)
    plot = check_plot(args.plot)
    _check(args)
    parallel = layout_of(args)
    return on_ranks(partial(_measure, args, plot, parallel), parallel)


def _check(args: Namespace) -> None:
    """ConfigError for flags of the other kind of model, or of the other kind of text."""
    if args.load and args.trust_remote_code:
        raise ConfigError("--trust-remote-code = true does nothing with --load; leave it out")
    if args.hugging_face and (args.ckpt_step is not None or args.no_check_hashes):
        raise ConfigError("--ckpt-step, --no-check-hashes do nothing with --hugging-face; leave them out")
    degrees = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    if args.hugging_face and degrees != (1, 1):
        raise ConfigError(
            f"--hugging-face = {args.hugging_face} runs on one process, not on tensor {degrees[0]} x pipeline "
            f"{degrees[1]}; leave the flags of a layout out"
        )
    if args.json_key is not None and args.text is None:
        raise ConfigError(f"--json-key = {args.json_key} does nothing without --text; leave it out")


def _measure(args: Namespace, plot: Path | None, parallel: ParallelConfig, launch: Launch) -> int:
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.cli.novelty_model import of_checkpoint, of_hugging_face
    from megatron_tlm.cli.results import tell_results

    if args.hugging_face and launch.world_size > 1:
        raise ConfigError(
            f"--hugging-face = {args.hugging_face} runs on one process, not on {launch.world_size}; start it without "
            "torchrun"
        )
    found = of_hugging_face(args) if args.hugging_face else of_checkpoint(args, parallel, launch)
    if launch.rank == 0:
        tell_results([found], table(found), args.json)
        if plot is not None:
            from megatron_tlm.cli.novelty_plot import write_novelty_plot

            with writing("--plot", plot):
                write_novelty_plot(found, plot)
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
    if len(found["rho_mlp"]) < 3:
        lines[-1] += "; 3 layers are the fewest that have one"
    return "\n".join(lines)
