"""`megatron-tlm data`: look at, check, merge and cut Megatron's .bin/.idx pairs."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

import numpy as np

from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.parser import Parser, integer, program
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_copy import find_pairs, merge, split_by_shares, split_evenly
from megatron_tlm.data.pair_report import SHARES, LengthReport, count_empty, report_lengths, verify
from megatron_tlm.data.tokenizers import TYPE_NAMES, Tokenizer, load_tokenizer
from megatron_tlm.errors import ConfigError, DataError

HISTOGRAM_WIDTH = 50

EXAMPLES = """\
examples:
  megatron-tlm data inspect corpus_text_document
  megatron-tlm data inspect corpus_text_document --document 7 --tokenizer-model tok.model
  megatron-tlm data sample corpus_text_document --count 3 --tokenizer-model tok.model
  megatron-tlm data verify a_text_document b_text_document --tokenizer-model tok.model
  megatron-tlm data merge --input shards/ --output-prefix whole
  megatron-tlm data split corpus_text_document --split 98,1,1 --output-prefix corpus
"""


def _add_inspect(parser: ArgumentParser) -> None:
    _add_prefixes(parser)
    parser.add_argument("--document", type=integer(0), metavar="N", help="print this document, the first is 0")
    _add_tokenizer(parser)


def _add_verify(parser: ArgumentParser) -> None:
    _add_prefixes(parser)
    parser.add_argument("--expect-eod", action="store_true", help="a document that does not end with its id is a fault")
    _add_tokenizer(parser)


def _add_merge(parser: ArgumentParser) -> None:
    parser.add_argument("--input", nargs="+", required=True, metavar="PREFIX", help="pairs, or folders of pairs")
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="of the merged pair")


def _add_split(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="of a .bin/.idx pair")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--split", metavar="SHARES", help="of train, valid, test, as in training: 969,30,1")
    how.add_argument("--shards", type=integer(), metavar="N", help="parts of nearly equal tokens instead")
    parser.add_argument(
        "--output-prefix", required=True, metavar="PREFIX", help="writes PREFIX_train or PREFIX_00000 ..."
    )


def _add_sample(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="of a .bin/.idx pair")
    parser.add_argument("--count", type=integer(), default=3, metavar="N", help="documents to show (default: 3)")
    parser.add_argument("--tokens", type=integer(), default=200, metavar="N", help="of each at most (default: 200)")
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help="of the choice (default: 0)")
    _add_tokenizer(parser)


def _add_prefixes(parser: ArgumentParser) -> None:
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="pairs, or folders of pairs")


def _add_tokenizer(parser: ArgumentParser) -> None:
    parser.add_argument("--tokenizer-type", metavar="TYPE", help=", ".join(TYPE_NAMES))
    parser.add_argument("--tokenizer-model", metavar="FILE", help="its .model, tokenizer.json or saved folder")
    parser.add_argument("--vocab-size", type=integer(), metavar="N", help="ids there are, where no tokenizer is given")


def _inspect(args: Namespace) -> None:
    tokenizer = _tokenizer(args)
    for prefix in find_pairs(args.prefixes):
        dataset = IndexedDataset(prefix)
        if args.document is not None:
            _show_document(dataset, args.document, tokenizer)
            continue
        print(f"{prefix}: {dataset.num_documents} documents, {dataset.num_tokens} tokens of {dataset.header.dtype}")
        sizes = (dataset.bin_path.stat().st_size, dataset.idx_path.stat().st_size)
        print(f"  files      .bin {sizes[0]} bytes, .idx {sizes[1]} bytes")
        print(f"  sequences  {len(dataset)}; {count_empty(dataset)} documents have none")
        lengths = report_lengths(dataset.lengths)
        if lengths is not None:
            _show_lengths(lengths)


def _show_lengths(report: LengthReport) -> None:
    middle = ", ".join(f"{share:.0%} {tokens}" for share, tokens in zip(SHARES, report.quantiles, strict=True))
    print(f"  tokens     shortest {report.shortest}, mean {report.mean:.1f}, {middle}, longest {report.longest}")
    most = max((report.num_zero, *report.histogram))
    rows = [("0", report.num_zero)] if report.num_zero else []
    rows += [(f"{1 << k}-{(2 << k) - 1}", count) for k, count in enumerate(report.histogram)]
    for name, count in rows:
        bar = "#" * -(-count * HISTOGRAM_WIDTH // most)
        print(f"  {name:>21} {count:>11} {bar}".rstrip())


def _show_document(
    dataset: IndexedDataset, document: int, tokenizer: Tokenizer | None, limit: int | None = None
) -> None:
    if not 0 <= document < dataset.num_documents:
        raise DataError(f"document = {document} is outside 0..{dataset.num_documents - 1} of {dataset.prefix}")
    start, stop = dataset.document_borders[document : document + 2].tolist()
    tokens = int(dataset.lengths[start:stop].sum(dtype=np.int64))
    print(f"--- document {document} of {dataset.prefix}: {stop - start} sequences, {tokens} tokens")
    for sequence in range(start, stop):
        ids = dataset[sequence][:limit].tolist()
        print(tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids)))


def _verify(args: Namespace) -> None:
    tokenizer = _tokenizer(args)
    vocab_size = tokenizer.vocab_size if tokenizer else args.vocab_size
    if args.expect_eod and tokenizer is None:
        raise ConfigError("--expect-eod needs to know the id; give --tokenizer-model or --tokenizer-type")
    for prefix in find_pairs(args.prefixes):
        dataset = IndexedDataset(prefix)
        eod_id = tokenizer.eod_id if tokenizer and args.expect_eod else None
        found = verify(dataset, vocab_size=vocab_size, eod_id=eod_id)
        if found.unended:
            raise DataError(
                f"{prefix} = {found.unended} of {dataset.num_documents} documents do not end with id {eod_id}; "
                "preprocess with --append-eod"
            )
        bound = f", all below {vocab_size}" if vocab_size else ""
        print(
            f"{prefix}: whole; {dataset.num_documents} documents, {found.empty_documents} empty; "
            f"{found.tokens} tokens, largest id {found.largest_id}{bound}; .bin sha256 {found.sha256}"
        )


def _merge(args: Namespace) -> None:
    prefixes = find_pairs(args.input)
    merged = merge(prefixes, args.output_prefix)
    _told_pair(merged, f" from {len(prefixes)} pairs")


def _split(args: Namespace) -> None:
    if args.split is not None:
        parts = split_by_shares(args.prefix, args.split, args.output_prefix)
    else:
        parts = split_evenly(args.prefix, args.shards, args.output_prefix)
    for name, dataset in parts.items():
        if dataset is None:
            print(f"no {name}: no sequence falls to it")
        else:
            _told_pair(dataset, "")


def _told_pair(dataset: IndexedDataset, origin: str) -> None:
    print(
        f"wrote {dataset.prefix}.bin and .idx{origin}: {dataset.num_documents} documents, {dataset.num_tokens} tokens"
    )


def _sample(args: Namespace) -> None:
    dataset = IndexedDataset(args.prefix)
    count = min(args.count, dataset.num_documents)
    chosen = np.random.RandomState(args.seed).choice(dataset.num_documents, count, replace=False)
    for document in sorted(chosen.tolist()):
        _show_document(dataset, document, _tokenizer(args), args.tokens)


def _tokenizer(args: Namespace) -> Tokenizer | None:
    if args.tokenizer_type is None and args.tokenizer_model is None:
        return None
    return load_tokenizer(args.tokenizer_type, args.tokenizer_model, vocab_size=args.vocab_size)


ACTIONS: dict[str, tuple[str, Callable[[ArgumentParser], None], Callable[[Namespace], None]]] = {
    "inspect": ("what a pair holds: documents, tokens, lengths, any document's text", _add_inspect, _inspect),
    "verify": ("read a pair end to end and check that all of it belongs together", _add_verify, _verify),
    "merge": ("many pairs into one, in the memory of one index", _add_merge, _merge),
    "split": ("one pair into train, valid and test as training would cut it, or into shards", _add_split, _split),
    "sample": ("some documents chosen at random, for a look", _add_sample, _sample),
}


def main(arguments: Sequence[str]) -> int:
    """Parse and run; exit code 0, mistakes as TlmError."""
    words = list(arguments)
    if not words or words[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<8} {text}" for name, (text, _, _) in ACTIONS.items())
        print(f"usage: {program('data')} ACTION [flags]\n\nactions:\n{lines}\n\n{EXAMPLES}", end="")
        if words:  # as every other command's --help does
            sys.exit(0)
        return 0
    if words[0] not in ACTIONS:
        raise ConfigError(f"data {words[0]} is not an action; {did_you_mean(words[0], ACTIONS)}")
    text, add_arguments, run = ACTIONS[words[0]]
    parser = Parser(prog=program(f"data {words[0]}"), description=text, epilog=EXAMPLES)
    add_arguments(parser)
    run(parser.parse(words[1:]))
    sys.stdout.flush()
    return 0
