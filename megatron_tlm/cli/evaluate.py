"""`megatron-tlm evaluate`: token perplexity of a checkpoint on .bin/.idx corpora."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError

EXAMPLES = """\
examples:
  megatron-tlm evaluate --load checkpoints --data-path heldout_text_document
  megatron-tlm evaluate --load checkpoints --data-path corpus_text_document --split 969,30,1
  megatron-tlm evaluate --load checkpoints --ckpt-step 2000 --data-path wiki_text_document books_text_document --json

Every token of a corpus but its first is predicted once, in windows of --seq-length. Several corpora are measured one by
one. With --split only the documents that training at that split kept for validation count.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("evaluate"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--load", required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--ckpt-step", metavar="N", help="step to load (default: the newest complete one)")
    parser.add_argument("--data-path", required=True, nargs="+", metavar="PREFIX", help="prefixes of .bin/.idx pairs")
    parser.add_argument("--split", metavar="A,B,C", help="measure B's share alone (default: the whole corpus)")
    parser.add_argument("--seq-length", metavar="N", help="tokens per window (default: the run's)")
    parser.add_argument("--micro-batch-size", default="8", metavar="N", help="windows at a time (default: 8)")
    parser.add_argument("--eval-iters", metavar="N", help="stop after N batches of windows (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each corpus")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure as asked: a line for each corpus on stdout, progress on stderr."""
    args = build_parser().parse(arguments)
    step, iterations = _number(args, "ckpt_step", 0), _number(args, "eval_iters", 1)
    batch, length = _number(args, "micro_batch_size", 1) or 1, _number(args, "seq_length", 1)
    for word in args.data_path:
        if _is_weight(word):
            raise ConfigError(f"--data-path = {word} is a weight and corpora are measured one by one; give prefixes")
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.evaluation.restore import load_model

    restored = load_model(args.load, step, tell=_tell)
    positions = restored.config.model.positions
    if length is not None and length > positions:
        raise ConfigError(
            f"--seq-length = {length} exceeds the model's max_position_embeddings = {positions}; give a shorter one"
        )
    for prefix in args.data_path:
        record = _measure(restored, prefix, args.split, length or restored.plan.seq_length, batch, iterations)
        print(json.dumps(record) if args.json else _sentence(record), flush=True)
    return 0


def _measure(
    restored: Any, prefix: str, split: str | None, length: int, batch: int, iterations: int | None
) -> dict[str, Any]:
    """Loss and perplexity on one corpus."""
    from megatron_tlm.data.gpt_dataset import check_vocabulary
    from megatron_tlm.data.indexed_dataset import IndexedDataset
    from megatron_tlm.data.samples import split_documents
    from megatron_tlm.evaluation.perplexity import evaluate_perplexity
    from megatron_tlm.evaluation.windows import count_windows, windows

    indexed = IndexedDataset(prefix)
    check_vocabulary(indexed, restored.plan.shape.vocab_size)
    sequences = range(len(indexed)) if split is None else split_documents(split, len(indexed))[1]
    if not sequences:
        raise ConfigError(
            f"--split = {split} leaves 0 of the {len(indexed)} documents of {prefix} for validation; raise its second "
            "share, or leave --split out"
        )
    total = count_windows(int(indexed.lengths[sequences.start : sequences.stop].sum()), length, batch)
    total = min(total, iterations or total)
    taken = islice(windows(indexed, sequences, length, batch), total)
    result = evaluate_perplexity(restored.stage, _with_progress(taken, total, prefix))
    return {
        "data": prefix,
        "step": restored.step,
        "tokens": result.num_tokens,
        "loss": result.loss,
        "perplexity": result.perplexity if math.isfinite(result.perplexity) else None,
        "bits_per_token": result.bits_per_token,
    }


def _sentence(record: dict[str, Any]) -> str:
    perplexity = record["perplexity"]
    return (
        f"{record['data']}: perplexity {math.inf if perplexity is None else perplexity:.4f}, loss {record['loss']:.4f} "
        f"({record['bits_per_token']:.4f} bits per token) over {record['tokens']:,} tokens at step {record['step']}"
    )


def _with_progress(batches: Iterable[Any], total: int, prefix: str) -> Iterator[Any]:
    """The same batches, counted on stderr where a person watches."""
    watched = sys.stderr.isatty()
    for done, batch in enumerate(batches, start=1):
        yield batch
        if watched:
            print(f"\r{prefix}: batch {done} of {total}", end="", file=sys.stderr, flush=True)
    if watched:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _number(args: Namespace, name: str, bound: int) -> int | None:
    """An integer flag of at least `bound`; None where it is not given."""
    text, flag = getattr(args, name), "--" + name.replace("_", "-")
    value: int | None = None if text is None else from_flag(text, int, flag)
    if value is not None and value < bound:
        raise ConfigError(f"{flag} = {value} is below {bound}; give {bound} or more")
    return value


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
