"""`megatron-tlm generate`: text from a checkpoint, printed as it comes."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError

UNFINISHED = "\ufffd"  # what a tokenizer shows for a character of which only some bytes are there

EXAMPLES = """\
examples:
  megatron-tlm generate --load checkpoints --prompt "Once upon a time"
  megatron-tlm generate --load checkpoints --prompt "The sea" --greedy --max-new-tokens 200
  megatron-tlm generate --load checkpoints --prompt "The sea" --temperature 0.8 --top-k 40 --top-p 0.95 --seed 7
  cat letter.txt | megatron-tlm generate --load checkpoints --prompt -
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("generate"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--load", required=True, metavar="DIR", help="folder a run was saved in")
    parser.add_argument("--ckpt-step", metavar="N", help="step to load (default: the newest complete one)")
    parser.add_argument("--no-check-hashes", action="store_true", help="load without reading every file's hash first")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to continue; - reads standard input")
    parser.add_argument("--max-new-tokens", default="64", metavar="N", help="tokens at most (default: 64)")
    heat = parser.add_mutually_exclusive_group()
    heat.add_argument("--temperature", default="1.0", metavar="X", help="below 1 sharpens, 0 is greedy (default: 1)")
    heat.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument("--top-k", default="0", metavar="N", help="draw from the N likeliest; 0: from all (default)")
    parser.add_argument("--top-p", default="1.0", metavar="X", help="draw from the fewest that hold X (default: 1)")
    parser.add_argument("--seed", default="1234", metavar="N", help="of the draws (default: 1234)")
    parser.add_argument("--no-echo", action="store_true", help="print the continuation without the prompt")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Continue the prompt on stdout; exit code 0, mistakes as TlmError."""
    args = build_parser().parse(arguments)
    step = None if args.ckpt_step is None else _integer(args, "ckpt_step", 0)
    wanted, top_k, seed = (_integer(args, *pair) for pair in (("max_new_tokens", 1), ("top_k", 0), ("seed", 0)))
    temperature = 0.0 if args.greedy else float(from_flag(args.temperature, float, "--temperature"))
    top_p = float(from_flag(args.top_p, float, "--top-p"))
    # Only now: torch takes a second to import, and a mistyped flag should not wait for it.
    from megatron_tlm.evaluation.generate import Sampling, generate
    from megatron_tlm.evaluation.restore import load_model

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    restored = load_model(args.load, step, tell=_tell, hashes=not args.no_check_hashes)
    tokenizer = restored.tokenizer
    if tokenizer is None:
        raise ConfigError(f"--load = {restored.path} was trained without a tokenizer; use a run that had one")
    ids = tokenizer.encode(prompt) or [tokenizer.eod_id]
    count = _room(wanted, len(ids), restored.config.model.positions)
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


def decoded(tokens: Iterable[int], prompt: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """The text of new tokens as they come, decoded behind the prompt; a character waits for all its bytes."""
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
        _tell(f"--max-new-tokens = {wanted} is cut to {positions - given}: the model was made for {positions} tokens")
    return min(wanted, positions - given)


def _integer(args: Namespace, name: str, bound: int) -> int:
    flag = "--" + name.replace("_", "-")
    value = int(from_flag(getattr(args, name), int, flag))
    if value < bound:
        raise ConfigError(f"{flag} = {value} is below {bound}; give {bound} or more")
    return value


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
