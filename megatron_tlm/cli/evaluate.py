"""`megatron-tlm evaluate`: perplexity of a checkpoint on pairs and texts, and tasks of lm-evaluation-harness."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from megatron_tlm.cli.files import check_json
from megatron_tlm.cli.model_flags import (
    add_checkpoint_flags,
    add_json_key,
    add_layout_flags,
    add_output_flags,
    add_window_flags,
    layout_of,
    text_key,
)
from megatron_tlm.cli.ranks import on_ranks
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.parser import Parser, integer, program
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.errors import ConfigError

EXAMPLES = """\
examples:
  megatron-tlm evaluate --load checkpoints --data-path heldout_text_document
  megatron-tlm evaluate --load checkpoints --data-path corpus_text_document --split 969,30,1
  megatron-tlm evaluate --load checkpoints --data-path wiki_text_document books_text_document --json results.json
  megatron-tlm evaluate --load checkpoints --text heldout.jsonl --seq-length 2048 --stride 512
  megatron-tlm evaluate --load checkpoints --text wiki.test.txt --protocol wikitext
  megatron-tlm evaluate --load checkpoints --text lambada.jsonl --protocol lambada
  megatron-tlm evaluate --load checkpoints --tasks my_choices my_perplexity --include-path tasks
  torchrun --standalone --nproc-per-node 4 -m megatron_tlm evaluate --load checkpoints \\
      --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --data-path heldout_text_document

The first window predicts --seq-length tokens, each later one the next --stride, from --seq-length tokens at most: so
every token of a pair but its first, and every token of a text, is predicted once. Several sets are measured one by one.
Ranks beyond tensor x pipeline share the windows out. What exactly each protocol does: docs/evaluation.md.
"""

DTYPES = ("float32", "bfloat16", "float64")
PROTOCOLS = ("documents", "wikitext", "lambada")

# Flag -> one of these has to be there for it to mean anything.
_BELONGS = {
    "split": ("data_path",),
    "eval_iters": ("data_path",),
    "protocol": ("text",),
    "json_key": ("text",),
    "include_path": ("tasks",),
    "num_fewshot": ("tasks",),
    "limit": ("text", "tasks"),
    "stride": ("data_path", "text"),
}


def build_parser() -> Parser:
    parser = Parser(prog=program("evaluate"), description=__doc__, epilog=EXAMPLES)
    add_checkpoint_flags(parser)
    pairs = parser.add_argument_group("pairs")
    pairs.add_argument("--data-path", nargs="+", metavar="PREFIX", help="prefixes of .bin/.idx pairs")
    pairs.add_argument("--split", metavar="A,B,C", help="measure B's share alone (default: the whole corpus)")
    pairs.add_argument(
        "--eval-iters", type=integer(), metavar="N", help="stop after N batches of windows (default: all)"
    )
    texts = parser.add_argument_group("texts, by the checkpoint's tokenizer")
    texts.add_argument("--text", nargs="+", metavar="FILE", help="JSON lines, .txt or Parquet; a glob is one set")
    texts.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        help="documents: each by itself, per token, word and byte (default); wikitext: the same, detokenised; lambada: "
        "the last word of each",
    )
    add_json_key(texts)
    tasks = parser.add_argument_group("tasks of lm-evaluation-harness (pip install 'megatron_tlm[eval]')")
    tasks.add_argument("--tasks", nargs="+", metavar="NAME", help="the harness's tasks, or your own")
    tasks.add_argument("--include-path", metavar="DIR", help="folder of your own tasks' YAML files")
    tasks.add_argument(
        "--num-fewshot", type=integer(0), metavar="N", help="examples before each question (default: the task's)"
    )
    tasks.add_argument("--limit", type=integer(), metavar="N", help="only the first N documents, of texts too")
    how = parser.add_argument_group("how")
    add_window_flags(how)
    how.add_argument(
        "--stride", type=integer(), metavar="N", help="tokens each later window predicts (default: all it holds)"
    )
    how.add_argument("--dtype", choices=DTYPES, help="default: the run's on a GPU, float32 on a CPU")
    add_layout_flags(how)
    add_output_flags(how)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure as asked: a table or JSON on stdout, progress on stderr."""
    args = build_parser().parse(arguments)
    _check(args)
    parallel = layout_of(args)
    return on_ranks(partial(_evaluate, args, parallel), parallel, "evaluating")


def _evaluate(args: Namespace, parallel: ParallelConfig, launch: Launch) -> int:
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.cli.measuring import Measuring, Options

    options = Options(
        load=args.load,
        step=args.ckpt_step,
        hashes=not args.no_check_hashes,
        context=args.seq_length,
        stride=args.stride,
        batch=args.micro_batch_size,
        dtype=args.dtype,
    )
    measuring = Measuring(options, parallel, launch)
    for prefix in args.data_path or ():
        measuring.pair(prefix, args.split, args.eval_iters)
    for pattern in args.text or ():
        measuring.text(pattern, args.protocol or PROTOCOLS[0], text_key(args), args.limit)
    if args.tasks:
        measuring.tasks(args.tasks, args.include_path, args.num_fewshot, args.limit)
    measuring.tell(args.json)
    return 0


def _check(args: Namespace) -> None:
    """ConfigError for what the flags alone have wrong."""
    if not (args.data_path or args.text or args.tasks):
        raise ConfigError("--data-path, --text, --tasks = none given where 1 says what to measure; give one")
    for name, owners in _BELONGS.items():
        value = getattr(args, name)
        if value is not None and not any(getattr(args, owner) for owner in owners):
            needed = " or ".join(_flag(owner) for owner in owners)
            raise ConfigError(f"{_flag(name)} = {value} does nothing without {needed}; give that too, or leave it out")
    check_json(args.json)
    for word in args.data_path or ():
        if _is_weight(word):
            raise ConfigError(f"--data-path = {word} is a weight and corpora are measured one by one; give prefixes")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
