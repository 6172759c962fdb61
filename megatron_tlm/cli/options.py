"""What the commands that read a configuration share: its flags, and the number of ids when a tokenizer knows it."""

import sys
from collections.abc import Iterable

from megatron_tlm.config.dump import dump, dump_differences
from megatron_tlm.config.flags import NOTES, add_config_flags
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError


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
    """The model's ids: as configured, else the tokenizer's.

    ConfigError where neither is given, and where the tokenizer has ids that the model would not know.
    """
    data, wanted = config.data, config.model.vocab_size
    if data.tokenizer_model is None and data.tokenizer_type is None:
        if wanted is None:
            raise ConfigError(
                "model.vocab_size is not given and no tokenizer is there to ask; give --tokenizer-model or --vocab-size"
            )
        return wanted
    # Only now: a tokenizer's library is not needed where the size is written down.
    from megatron_tlm.data.tokenizers import load_tokenizer

    known = load_tokenizer(data.tokenizer_type, data.tokenizer_model).vocab_size
    if wanted is not None and known > wanted:
        raise ConfigError(
            f"model.vocab_size = {wanted} is below the {known} ids of the tokenizer; give --vocab-size {known}, or "
            "--vocab-size none to take the tokenizer's"
        )
    return known if wanted is None else wanted


def speaks_unicode() -> bool:
    """Whether standard output can show the bars of the plan."""
    return (sys.stdout.encoding or "ascii").lower().startswith("utf")
