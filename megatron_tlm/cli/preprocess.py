"""`megatron-tlm preprocess`: text to a Megatron .bin/.idx pair."""

import signal
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from types import FrameType

from megatron_tlm.config.megatron import REFUSED, REFUSED_VALUES, VALUE_ALIASES
from megatron_tlm.config.parser import Parser, integer, program, real
from megatron_tlm.data.documents import MAX_LINE_BYTES
from megatron_tlm.data.inputs import KNOWN
from megatron_tlm.data.preprocess import Listener, Options, preprocess
from megatron_tlm.data.tokenizers import TYPE_NAMES, load_tokenizer

EXAMPLES = """\
examples:
  megatron-tlm preprocess --input corpus.jsonl.gz --output-prefix corpus --append-eod --workers 8 \\
      --tokenizer-model tok.model
  megatron-tlm preprocess --input 'shards/*.jsonl' --json-keys title text --output-prefix corpus \\
      --tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer.json

  zcat dump.gz | megatron-tlm preprocess --input - --on-bad-line quarantine --output-prefix corpus \\
      --tokenizer-model tok.model

The pair is Megatron's, byte for byte, and the same for any number of workers. It appears when it is complete. A run
that ended early, however it did, is continued by the same command: what is finished is recognised by its content.
"""

NOT_OFFERED = ("--vocab-file", "--merge-file")


def add_arguments(parser: ArgumentParser) -> None:
    """The options of Megatron's `preprocess_data.py`."""
    source = parser.add_argument_group("text")
    source.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help=f"files, globs, folders, or - for JSON lines on standard input: {KNOWN}",
    )
    source.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys to take (default: text)")
    source.add_argument(
        "--keep-newlines", action="store_true", help="accepted for Megatron's sake: newlines are always kept"
    )
    source.add_argument(
        "--txt-document",
        choices=("file", "paragraph"),
        default="file",
        help="a document of a .txt: the whole file, or what stands between blank lines (default: file)",
    )
    source.add_argument(
        "--on-bad-line",
        choices=("stop", "skip", "quarantine"),
        default="stop",
        help="each is told with file, line and reason; quarantine keeps them in PREFIX_bad_lines.jsonl (default: stop)",
    )
    source.add_argument(
        "--max-line-mb",
        type=real(1e-6),
        default=MAX_LINE_BYTES / 1e6,
        metavar="MB",
        help=f"a longer line is a bad one; encoding takes some 50 times its size (default: {MAX_LINE_BYTES / 1e6:.0f})",
    )
    tokenizer = parser.add_argument_group("tokenizer")
    tokenizer.add_argument(
        "--tokenizer-type", metavar="TYPE", help=f"{', '.join(TYPE_NAMES)} (default: by the file of --tokenizer-model)"
    )
    tokenizer.add_argument("--tokenizer-model", metavar="FILE", help="its .model, tokenizer.json or saved folder")
    tokenizer.add_argument("--vocab-size", type=integer(), metavar="N", help="ids of a NullTokenizer")
    tokenizer.add_argument("--append-eod", action="store_true", help="end every document with the end-of-document id")
    for flag in NOT_OFFERED:
        tokenizer.add_argument(flag, nargs="+", help=SUPPRESS)
    output = parser.add_argument_group("output")
    # What Megatron-DeepSpeed's scripts pass: the one format there is.
    output.add_argument("--dataset-impl", choices=("mmap", "infer"), help=SUPPRESS)
    output.add_argument(
        "--output-prefix", required=True, metavar="PREFIX", help="writes PREFIX_KEY_document.bin and .idx"
    )
    runtime = parser.add_argument_group("run")
    runtime.add_argument("--workers", type=integer(), metavar="N", help="processes (default: one per core)")
    runtime.add_argument(
        "--log-interval", type=integer(), default=1000, metavar="N", help="documents between two lines (default: 1000)"
    )
    runtime.add_argument(
        "--restart", action="store_true", help="start anew where a run of this prefix ended early, not continue it"
    )


def main(arguments: Sequence[str]) -> int:
    """Parse and run; exit code 0, mistakes as TlmError."""
    parser = Parser(prog=program("preprocess"), description=__doc__, epilog=EXAMPLES)
    add_arguments(parser)
    parser.checks.append(lambda namespace: tuple(_refusals(namespace)))
    return run(parser.parse(arguments))


def _refusals(args: Namespace) -> Iterator[str]:
    """A sentence for each of Megatron's flags that asks for what is not read here, as in training."""
    for flag in NOT_OFFERED:
        if values := getattr(args, flag.removeprefix("--").replace("-", "_")):
            yield f"{' '.join((flag, *values))} is not offered: {REFUSED[flag]}"
    if reason := REFUSED_VALUES["tokenizer_type"].get(args.tokenizer_type):
        yield f"--tokenizer-type = {args.tokenizer_type} {reason}"


def run(args: Namespace) -> int:
    """Preprocess as asked; progress goes to stderr, what was written to stdout."""
    # A batch system's kill shall leave no half-written file either.
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        return _preprocess(args)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _preprocess(args: Namespace) -> int:
    kind = VALUE_ALIASES["tokenizer_type"].get(args.tokenizer_type) or args.tokenizer_type
    tokenizer = load_tokenizer(kind, args.tokenizer_model, vocab_size=args.vocab_size)
    options = Options(
        json_keys=args.json_keys,
        append_eod=args.append_eod,
        workers=args.workers,
        text_unit=args.txt_document,
        on_bad_line=args.on_bad_line,
        max_line_bytes=int(args.max_line_mb * 1e6),
        restart=args.restart,
    )
    listener = Listener(progress=_say, tell=_say, interval=args.log_interval)
    result = preprocess(args.input, args.output_prefix, tokenizer, options, listener)
    for prefix in result.prefixes.values():
        print(f"wrote {prefix}.bin and .idx")
    counts = result.counts
    if counts.num_bad:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.bad_lines.items()))
        where = f", kept in {result.quarantine}" if result.quarantine else ""
        print(f"{counts.num_bad} bad lines left out ({kinds}){where}")
    empty = f", {counts.empty_documents} of them empty" if counts.empty_documents else ""
    print(f"{counts.documents} documents{empty}, {counts.tokens} tokens in {result.elapsed_seconds:.1f} s")
    return 0


def _say(news: object) -> None:
    print(news, file=sys.stderr, flush=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
