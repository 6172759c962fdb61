"""`megatron-tlm needle`: needles in haystacks of any length and depth, asked of a checkpoint."""

import json
import sys
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
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError

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

KINDS = ("pass-key", "number", "uuid", "multi-number", "multi-uuid")


def build_parser() -> Parser:
    parser = Parser(prog=program("needle"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--load", required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--ckpt-step", metavar="N", help="step to load (default: the newest complete one)")
    parser.add_argument("--haystack", required=True, nargs="+", metavar="FILE", help="JSON lines, .txt or Parquet")
    parser.add_argument(
        "--json-key", default="text", metavar="KEY", help="what holds a document's text (default: text)"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is hidden (default: all)")
    parser.add_argument("--lengths", nargs="+", metavar="N", help="tokens (default: the run's seq_length)")
    parser.add_argument(
        "--depths", nargs="+", default=["0", "25", "50", "75", "100"], metavar="PERCENT", help="0 is the text's start"
    )
    parser.add_argument("--samples", default="10", metavar="N", help="texts of each kind, length, depth (default: 10)")
    parser.add_argument("--seed", default="1234", metavar="N", help="of texts and values (default: 1234)")
    add_layout_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="a heat map of each kind: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="one JSON object for each cell instead of tables")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Ask as asked: a table of length x depth for each kind, or JSON, on stdout; progress on stderr."""
    args = build_parser().parse(arguments)
    if args.plot is not None:
        check_plot(args.plot)
    for name, bound in (("ckpt_step", 0), ("samples", 1), ("seed", 0)):
        number(args, name, bound)
    parallel = layout_of(args)
    _depths(args), _lengths(args)
    return on_ranks(partial(_ask, args, parallel), parallel)


def _ask(args: Namespace, parallel: ParallelConfig, launch: Launch) -> int:
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.cli.needle_plot import write_needle_plot
    from megatron_tlm.data.inputs import expand_inputs
    from megatron_tlm.data.sentencepiece_tokenizer import read_texts
    from megatron_tlm.evaluation.generate import GREEDY, decode
    from megatron_tlm.evaluation.needle import Haystack, score
    from megatron_tlm.evaluation.restore import load_model
    from megatron_tlm.train.survival.agree import agree

    restored = load_model(args.load, number(args, "ckpt_step", 0), tell=_say, parallel=parallel, launch=launch)
    lengths = _lengths(args) or [restored.plan.seq_length]
    seed, samples = number(args, "seed", 0) or 0, number(args, "samples", 1) or 1

    def hide() -> Any:
        tokenizer, positions = restored.tokenizer, restored.config.model.positions
        if tokenizer is None:
            raise ConfigError(f"--load = {restored.path} was trained without a tokenizer; use a run that had one")
        if max(lengths) > positions:
            raise ConfigError(
                f"--lengths = {max(lengths)} exceeds the model's max_position_embeddings = {positions}; give shorter "
                "ones"
            )
        haystack = Haystack(list(read_texts(expand_inputs(args.haystack), [args.json_key])), tokenizer)
        cells = [(kind, length, depth) for kind in args.kinds for length in lengths for depth in _depths(args)]
        return tokenizer, [
            (cell, [haystack.example(cell[0], cell[1], cell[2] / 100, seed, index) for index in range(samples)])
            for cell in cells
        ]

    tokenizer, cells = agree(hide) if launch.world_size > 1 else hide()

    def answer(prompt: Sequence[int], count: int) -> list[int]:
        steps = decode(restored.model, [prompt], [GREEDY], max_new_tokens=count, num_ids=tokenizer.vocab_size)
        return [token for (token,) in steps]

    found = []
    for done, ((kind, length, depth), examples) in enumerate(cells):
        if launch.rank == 0 and sys.stderr.isatty():
            print(
                f"\r\033[K{kind}, {length} tokens, depth {depth:g} %: {done} of {len(cells)}", end="", file=sys.stderr
            )
        scores = [score(example, answer, tokenizer) for example in examples]
        cell = {"kind": kind, "length": length, "depth": depth, "samples": samples, "seed": seed}
        found.append(cell | {"score": sum(scores) / len(scores), "model": str(restored.path), "step": restored.step})
    if launch.rank == 0:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        print("\n".join(map(json.dumps, found)) if args.json else tables(found), flush=True)
        if args.plot:
            write_needle_plot(found, Path(args.plot))
    return 0


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


def _depths(args: Namespace) -> list[float]:
    depths = [float(from_flag(text, float, "--depths")) for text in args.depths]
    for depth in depths:
        if not 0 <= depth <= 100:
            raise ConfigError(f"--depths = {depth:g} lies outside 0..100 percent; give one inside")
    return list(dict.fromkeys(depths))


def _lengths(args: Namespace) -> list[int]:
    lengths = [int(from_flag(text, int, "--lengths")) for text in args.lengths or ()]
    for length in lengths:
        if length < 1:
            raise ConfigError(f"--lengths = {length} is below 1; give tokens")
    return list(dict.fromkeys(lengths))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
