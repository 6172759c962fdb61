"""What the commands that read a configuration share: its flags, and the number of ids when a tokenizer knows it."""

import sys
from collections.abc import Iterable

from megatron_tlm.config.dump import dump, dump_differences
from megatron_tlm.config.flags import NOTES, add_config_flags
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.schema import Config


def config_parser(command: str, text: str, examples: str) -> Parser:
    """A parser with a flag for every field of the schema."""
    name = program(command)
    usage = f"{name} [--preset NAME] [--config FILE] [flags]"
    parser = Parser(prog=name, usage=usage, description=text, epilog=f"examples:\n{examples}\n{NOTES}")
    add_config_flags(parser)
    parser.add_argument("--show-config", action="store_true", help="print every field of the resolved configuration")
    return parser


def shown_config(config: Config, *, whole: bool) -> str:
    """The resolved configuration as YAML: every field, or those that are not as by default."""
    return dump(config) if whole else dump_differences(config)


def note(sentence: str) -> None:
    """Notes go to stderr, which leaves stdout to what was asked for."""
    print(f"note: {sentence}", file=sys.stderr, flush=True)


def tell(notes: Iterable[str]) -> None:
    """Each as a note."""
    for sentence in notes:
        note(sentence)


def vocab_size(config: Config) -> int:
    """The model's ids: as configured, else the tokenizer's; ConfigError as of `read_vocabulary`."""
    data, wanted = config.data, config.model.vocab_size
    if wanted is not None and data.tokenizer_model is None and data.tokenizer_type is None:
        return wanted
    # Only now: a tokenizer's library is not needed where the size is written down.
    from megatron_tlm.data.vocabulary import read_vocabulary

    return read_vocabulary(config)[1]


def speaks_unicode() -> bool:
    """Whether standard output can show the bars of the plan."""
    return (sys.stdout.encoding or "ascii").lower().startswith("utf")
