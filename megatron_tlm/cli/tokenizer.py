"""`megatron-tlm tokenizer`: a SentencePiece model from text, and what any tokenizer does to a text."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import islice

from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.parser import Parser, integer, program, real
from megatron_tlm.data.documents import read_texts
from megatron_tlm.data.index_format import token_dtype
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.data.round_trip import PROBES, count_trips, end_of, first_difference, pieces, take_trip
from megatron_tlm.data.tokenizers import TYPE_NAMES, Tokenizer, load_tokenizer, train_sentencepiece
from megatron_tlm.errors import ConfigError, DataError

ACTIONS = ("train", "inspect")

EXAMPLES = """\
examples:
  megatron-tlm tokenizer train --input corpus.jsonl.gz --model-prefix tok --vocab-size 32000
  megatron-tlm tokenizer train --input 'shards/*.jsonl.gz' --max-documents 100000 --model-prefix tok --vocab-size 32000

Pieces are byte-pair, with 4 control pieces (<unk>, <s>, </s>, <pad>) and the 256 bytes among them; nothing is
normalised, so decoding gives back every text.
"""


INSPECT_EXAMPLES = """\
examples:
  megatron-tlm tokenizer inspect --tokenizer-model tok.model
  megatron-tlm tokenizer inspect --tokenizer-model tokenizer.json --text "two  spaces" --input corpus.jsonl
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `tokenizer train`."""
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="files, globs or folders of text")
    parser.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys to take (default: text)")
    parser.add_argument(
        "--model-prefix",
        "--output-prefix",
        required=True,
        metavar="PREFIX",
        help="writes PREFIX.model and PREFIX.vocab",
    )
    parser.add_argument("--vocab-size", type=integer(), required=True, metavar="N", help="pieces in all")
    parser.add_argument(
        "--character-coverage",
        type=real(0.98, 1.0),  # sentencepiece's bounds
        default=0.9995,
        metavar="SHARE",
        help="of the characters to give a piece of their own; others become bytes (default: 0.9995)",
    )
    parser.add_argument("--max-documents", type=integer(), metavar="N", help="train on N documents chosen at random")


def add_inspect_arguments(parser: ArgumentParser) -> None:
    """The flags of `tokenizer inspect`."""
    parser.add_argument("--tokenizer-type", metavar="TYPE", help=f"{', '.join(TYPE_NAMES)} (default: by the file)")
    parser.add_argument("--tokenizer-model", metavar="FILE", help="its .model, tokenizer.json or saved folder")
    parser.add_argument("--vocab-size", type=integer(), metavar="N", help="ids of a NullTokenizer")
    parser.add_argument("--text", nargs="+", default=[], metavar="TEXT", help="texts to take apart, instead of ours")
    parser.add_argument(
        "--input", nargs="+", default=[], metavar="FILE", help="also count over the texts of these files"
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys to take (default: text)")
    parser.add_argument("--max-documents", type=integer(), default=1000, metavar="N", help="of --input (default: 1000)")


def main(arguments: Sequence[str]) -> int:
    """Parse and run; exit code 0, mistakes as TlmError."""
    words = list(arguments)
    action = "train"
    if words and words[0] in ACTIONS:
        action, *words = words
    elif not words:
        raise ConfigError("tokenizer takes an action; write `megatron-tlm tokenizer train` or `tokenizer inspect`")
    elif not words[0].startswith("-"):
        raise ConfigError(f"tokenizer {words[0]} is not an action; {did_you_mean(words[0], ACTIONS)}")
    if action == "inspect":
        parser = Parser(prog=program("tokenizer inspect"), description=__doc__, epilog=INSPECT_EXAMPLES)
        add_inspect_arguments(parser)
        return inspect(parser.parse(words))
    parser = Parser(prog=program("tokenizer train"), description=__doc__, epilog=EXAMPLES)
    add_arguments(parser)
    return run(parser.parse(words))


def inspect(args: Namespace) -> int:
    """Print what a tokenizer makes of some texts, and whether it gives them back."""
    tokenizer = load_tokenizer(args.tokenizer_type, args.tokenizer_model, vocab_size=args.vocab_size)
    end, dtype = end_of(tokenizer), token_dtype(tokenizer.vocab_size)
    ending = "no end-of-document id" if end is None else f"end-of-document id {end}"
    print(f"{tokenizer.type_name}: {tokenizer.vocab_size} ids, stored as {dtype}, {ending}")
    probes = {f"text {number}": text for number, text in enumerate(args.text, 1)} or PROBES
    trips = {name: take_trip(tokenizer, text) for name, text in probes.items()}
    for name, trip in trips.items():
        verdict = "same" if trip.is_lossless else "CHANGED " + first_difference(trip)
        warning = "; HOLDS THE END-OF-DOCUMENT ID" if trip.holds_end else ""
        print(f"  {name:<27} {trip.text!r}\n  {'':<27} {len(trip.ids)} ids, {verdict}{warning}")
        print(f"  {'':<27} {' | '.join(pieces(tokenizer, trip.ids))}")
    lossy = [name for name, trip in trips.items() if not trip.is_lossless]
    print("every text comes back as it was" if not lossy else f"not given back as they were: {', '.join(lossy)}")
    if args.input:
        _inspect_files(args, tokenizer)
    return 0


def _inspect_files(args: Namespace, tokenizer: Tokenizer) -> None:
    texts = read_texts(expand_inputs(args.input), args.json_keys)
    found = count_trips(tokenizer, islice(texts, args.max_documents))
    if not found.texts:
        raise DataError(f"input = {' '.join(args.input)} holds no text under {', '.join(args.json_keys)}; give more")
    print(f"{found.lossless} of {found.texts} texts of the input come back as they were, ", end="")
    print(f"{found.text_bytes / max(1, found.tokens):.2f} bytes a token")
    if found.first_lossy:
        print(f"  the first that does not: {first_difference(found.first_lossy)}")
    if found.with_end:
        print(f"  {found.with_end} texts hold the end-of-document id, as if the document ended there")


def run(args: Namespace) -> int:
    """Train as asked; progress goes to stderr, the model's path to stdout."""
    model = train_sentencepiece(
        args.input,
        args.model_prefix,
        args.vocab_size,
        json_keys=args.json_keys,
        character_coverage=args.character_coverage,
        max_documents=args.max_documents,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(model)
    return 0
