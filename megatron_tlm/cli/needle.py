"""`megatron-tlm needle`: needles in haystacks of any length and depth, asked of a checkpoint."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_tlm.cli.countdown import Countdown
from megatron_tlm.cli.files import check_json, check_plot, writing
from megatron_tlm.cli.model_flags import (
    add_checkpoint_flags,
    add_json_key,
    add_layout_flags,
    add_output_flags,
    layout_of,
    text_key,
)
from megatron_tlm.cli.options import note
from megatron_tlm.cli.ranks import on_ranks
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.parser import Parser, integer, program, real
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.evaluation.needle import KINDS, Example, Kind

if TYPE_CHECKING:
    from megatron_tlm.data.tokenizers import Tokenizer
    from megatron_tlm.evaluation.restore import Restored

EXAMPLES = """\
examples:
  megatron-tlm needle --load checkpoints --haystack heldout.jsonl --lengths 512 1024 2048 --plot needles.png
  megatron-tlm needle --load checkpoints --haystack books.txt --kinds uuid multi-uuid --lengths 4096 --samples 50 --json
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm needle --load checkpoints --haystack heldout.jsonl \\
      --tensor-model-parallel-size 4 --lengths 16384

A sentence with a value is hidden in the text, and the value is asked for at its end: a 5-digit pass key, a 7-digit
number, a UUID; multi-number and multi-uuid hide four and ask for each. The prompt and the room for the answer have the
length asked for, to the token. The score is the share of values that the greedy answer holds. Use text that the model
was not trained on.
"""

DEPTHS = (0.0, 25.0, 50.0, 75.0, 100.0)
Cell = tuple[Kind, int, float]


def build_parser() -> Parser:
    parser = Parser(prog=program("needle"), description=__doc__, epilog=EXAMPLES)
    add_checkpoint_flags(parser)
    parser.add_argument("--haystack", required=True, nargs="+", metavar="FILE", help="JSON lines, .txt or Parquet")
    add_json_key(parser)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"{', '.join(KINDS)} (default: all)"
    )
    parser.add_argument(
        "--lengths", nargs="+", type=integer(), metavar="N", help="tokens (default: the run's seq_length)"
    )
    parser.add_argument(
        "--depths",
        nargs="+",
        type=real(0, 100),
        default=DEPTHS,
        metavar="PERCENT",
        help="0 is the text's start, 100 its end (default: 0 25 50 75 100)",
    )
    parser.add_argument(
        "--samples", type=integer(), default=10, metavar="N", help="texts of each kind, length, depth (default: 10)"
    )
    parser.add_argument(
        "--seed", type=integer(0), default=1234, metavar="N", help="of texts and values (default: 1234)"
    )
    add_layout_flags(parser)
    add_output_flags(parser, picture="a heat map of each kind")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Ask as asked: a table of length x depth for each kind, or JSON, on stdout; progress on stderr."""
    args = build_parser().parse(arguments)
    check_json(args.json)
    plot = check_plot(args.plot)
    parallel = layout_of(args)
    return on_ranks(partial(_ask, args, plot, parallel), parallel)


def _ask(args: Namespace, plot: Path | None, parallel: ParallelConfig, launch: Launch) -> int:
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.cli.needle_plot import write_needle_plot
    from megatron_tlm.cli.results import tell_results
    from megatron_tlm.evaluation.generate import GREEDY, decode
    from megatron_tlm.evaluation.needle import score
    from megatron_tlm.evaluation.restore import load_model

    hashes = not args.no_check_hashes
    restored = load_model(args.load, args.ckpt_step, tell=note, hashes=hashes, parallel=parallel, launch=launch)
    tokenizer, cells = restored.together(lambda: _hide(args, restored))

    def answer(prompt: Sequence[int], count: int) -> list[int]:
        steps = decode(restored.model, [prompt], [GREEDY], max_new_tokens=count, num_ids=tokenizer.vocab_size)
        return [token for (token,) in steps]

    found: list[dict[str, Any]] = []
    with Countdown("needles", "text", speaks=launch.rank == 0) as countdown:
        for kind, length, depth in cells:
            scores = []
            for example in cells[kind, length, depth]:
                scores.append(score(example, answer, tokenizer))
                countdown(len(found) * args.samples + len(scores), len(cells) * args.samples)
            cell = {"kind": kind, "length": length, "depth": depth, "samples": args.samples, "seed": args.seed}
            cell |= {"score": sum(scores) / len(scores), "model": str(restored.path), "step": restored.step}
            found.append(cell)
    if launch.rank == 0:
        tell_results(found, tables(found), args.json)
        if plot is not None:
            with writing("--plot", plot):
                write_needle_plot(found, plot)
    return 0


def _hide(args: Namespace, restored: "Restored") -> "tuple[Tokenizer, dict[Cell, list[Example]]]":
    """The texts of every kind, length and depth. TlmError where the model or the haystack is too short for one."""
    from megatron_tlm.data.documents import read_texts
    from megatron_tlm.data.inputs import expand_inputs
    from megatron_tlm.evaluation.needle import Haystack

    tokenizer = restored.tokenizer_for(f"--haystack = {args.haystack[0]}", "give the --load of a run that had one")
    lengths = args.lengths or [restored.plan.seq_length]
    restored.check_length("--lengths", max(lengths))
    haystack = Haystack(list(read_texts(expand_inputs(args.haystack), [text_key(args)])), tokenizer)
    return tokenizer, {
        (kind, length, depth): [
            haystack.example(kind, length, depth / 100, args.seed, index) for index in range(args.samples)
        ]
        for kind in args.kinds
        for length in lengths
        for depth in args.depths
    }


def tables(found: Sequence[dict[str, Any]]) -> str:
    """Of each kind: a row per length, a column per depth, percent of values found."""
    lines = [f"{found[0]['model']}: percent of values found, {found[0]['samples']} texts a cell"]
    for kind in dict.fromkeys(cell["kind"] for cell in found):
        cells = {(cell["length"], cell["depth"]): cell["score"] for cell in found if cell["kind"] == kind}
        depths = list(dict.fromkeys(depth for _, depth in cells))
        lines += ["", f"{kind:<14}" + "".join(f"{f'depth {depth:g}':>11}" for depth in depths)]
        for length in dict.fromkeys(length for length, _ in cells):
            lines.append(f"{length:>7} tokens" + "".join(f"{100 * cells[length, depth]:11.1f}" for depth in depths))
    return "\n".join(lines)
