"""`megatron-tlm tokenizer train`: a SentencePiece model from text."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.data.tokenizers import train_sentencepiece
from megatron_tlm.errors import ConfigError

ACTIONS = ("train",)

EXAMPLES = """\
examples:
  megatron-tlm tokenizer train --input corpus.jsonl.gz --model-prefix tok --vocab-size 32000
  megatron-tlm tokenizer train --input 'shards/*.jsonl.gz' --max-documents 100000 --model-prefix tok --vocab-size 32000

Pieces are byte-pair, with 4 control pieces (<unk>, <s>, </s>, <pad>) and the 256 bytes among them; nothing is
normalised, so decoding gives back every text.
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
    parser.add_argument("--vocab-size", type=int, required=True, metavar="N", help="pieces in all")
    parser.add_argument(
        "--character-coverage",
        type=float,
        default=0.9995,
        metavar="SHARE",
        help="of the characters to give a piece of their own; others become bytes (default: 0.9995)",
    )
    parser.add_argument("--max-documents", type=int, metavar="N", help="train on N documents chosen at random")


def main(arguments: Sequence[str]) -> int:
    """Parse and run; exit code 0, mistakes as TlmError."""
    words = list(arguments)
    if words and words[0] in ACTIONS:
        words = words[1:]
    elif not words:
        raise ConfigError("tokenizer takes an action; write `megatron-tlm tokenizer train`")
    elif not words[0].startswith("-"):
        raise ConfigError(f"tokenizer {words[0]} is not an action; {did_you_mean(words[0], ACTIONS)}")
    parser = Parser(prog=program("tokenizer train"), description=__doc__, epilog=EXAMPLES)
    add_arguments(parser)
    return run(parser.parse(words))


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
