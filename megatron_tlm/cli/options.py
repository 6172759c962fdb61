"""What the commands that read a configuration share: its flags, and the number of ids when a tokenizer knows it."""

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
    return parser


def vocab_size(config: Config) -> int:
    """The model's ids: as configured, else the tokenizer's. ConfigError where neither is given."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    data = config.data
    if data.tokenizer_model is None and data.tokenizer_type is None:
        raise ConfigError(
            "model.vocab_size is not given and no tokenizer is there to ask; give --tokenizer-model or --vocab-size"
        )
    from megatron_tlm.data.tokenizers import load_tokenizer

    return load_tokenizer(data.tokenizer_type, data.tokenizer_model).vocab_size
