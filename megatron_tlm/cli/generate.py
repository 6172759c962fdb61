"""`megatron-tlm generate`: text from a checkpoint, printed as it comes."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megatron_tlm.cli.model_flags import add_checkpoint_flags
from megatron_tlm.cli.options import note
from megatron_tlm.config.parser import Parser, integer, program, real
from megatron_tlm.config.values import is_text
from megatron_tlm.errors import ConfigError

EXAMPLES = """\
examples:
  megatron-tlm generate --load checkpoints --prompt "Once upon a time"
  megatron-tlm generate --load checkpoints --prompt "The sea" --greedy --max-new-tokens 200
  megatron-tlm generate --load checkpoints --prompt "The sea" --temperature 0.8 --top-k 40 --top-p 0.95 --seed 7
  cat letter.txt | megatron-tlm generate --load checkpoints --prompt -
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("generate"), description=__doc__, epilog=EXAMPLES)
    add_checkpoint_flags(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to continue; - reads standard input")
    parser.add_argument(
        "--max-new-tokens", type=integer(), default=64, metavar="N", help="tokens at most (default: 64)"
    )
    heat = parser.add_mutually_exclusive_group()
    heat.add_argument(
        "--temperature", type=real(), default=1.0, metavar="X", help="below 1 sharpens, 0 is greedy (default: 1)"
    )
    heat.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument(
        "--top-k", type=integer(0), default=0, metavar="N", help="draw from the N likeliest; 0: from all (default)"
    )
    parser.add_argument(
        "--top-p", type=real(), default=1.0, metavar="X", help="draw from the fewest that hold X (default: 1)"
    )
    parser.add_argument("--seed", type=integer(0), default=1234, metavar="N", help="of the draws (default: 1234)")
    parser.add_argument("--no-echo", action="store_true", help="print the continuation without the prompt")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Continue the prompt on stdout; exit code 0, mistakes as TlmError."""
    args = build_parser().parse(arguments)
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.evaluation.generate import Sampling, generate
    from megatron_tlm.evaluation.restore import load_model

    temperature = 0.0 if args.greedy else args.temperature
    sampling = Sampling(temperature=temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    prompt = _standard_input() if args.prompt == "-" else args.prompt
    restored = load_model(args.load, args.ckpt_step, tell=note, hashes=not args.no_check_hashes)
    tokenizer = restored.tokenizer_for("--prompt", "give the --load of a run that had one")
    ids = tokenizer.encode(prompt) or [tokenizer.eod_id]
    count = _room(args.max_new_tokens, len(ids), restored.config.model.positions)
    tokens = generate(
        restored.stage,
        ids,
        max_new_tokens=count,
        eod_id=tokenizer.eod_id,
        sampling=sampling,
        num_ids=tokenizer.vocab_size,
    )
    if not args.no_echo:
        print(prompt, end="", flush=True)
    for piece in decoded(tokens, ids, tokenizer):
        print(piece, end="", flush=True)
    print()
    return 0


def _standard_input() -> str:
    try:
        given = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt = byte {error.start} of standard input is no UTF-8; convert the text") from None
    if not is_text(given):
        raise ConfigError("--prompt = standard input holds bytes that are no UTF-8; convert the text")
    return given


def decoded(tokens: Iterable[int], prompt: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """The text of new tokens as they come, decoded behind the prompt; a character waits for all its bytes."""
    from megatron_tlm.data.round_trip import UNFINISHED

    ids = list(prompt)
    shown = tokenizer.decode(ids)
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith(UNFINISHED):
            yield text[len(shown) :]
            shown = text
    yield tokenizer.decode(ids)[len(shown) :]


def _room(wanted: int, given: int, positions: int) -> int:
    """New tokens that fit behind the prompt into the longest sequence that the model was made for."""
    if given >= positions:
        raise ConfigError(
            f"--prompt = {given} tokens fills the model's max_position_embeddings = {positions}; give a shorter one"
        )
    if given + wanted > positions:
        note(f"--max-new-tokens = {wanted} is cut to {positions - given}: the model was made for {positions} tokens")
    return min(wanted, positions - given)
