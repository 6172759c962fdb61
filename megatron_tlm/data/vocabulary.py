"""How many ids a model knows: as configured, or as many as its tokenizer has."""

from megatron_tlm.config.schema import Config
from megatron_tlm.data.tokenizers import Tokenizer, load_tokenizer
from megatron_tlm.errors import ConfigError


def read_vocabulary(config: Config) -> tuple[Tokenizer | None, int]:
    """The tokenizer, where one is given, and the number of ids.

    ConfigError where neither is given, and where the tokenizer has ids that the model would not know.
    """
    data, wanted = config.data, config.model.vocab_size
    if data.tokenizer_model is None and data.tokenizer_type is None:
        if wanted is None:
            raise ConfigError(
                "model.vocab_size is not given and no tokenizer is there to ask; give --tokenizer-model or --vocab-size"
            )
        return None, wanted
    tokenizer = load_tokenizer(data.tokenizer_type, data.tokenizer_model)
    known = tokenizer.vocab_size
    if wanted is not None and known > wanted:
        raise ConfigError(
            f"model.vocab_size = {wanted} is below the {known} ids of the tokenizer; give --vocab-size {known}, or "
            "--vocab-size none to take the tokenizer's"
        )
    return tokenizer, known if wanted is None else wanted
