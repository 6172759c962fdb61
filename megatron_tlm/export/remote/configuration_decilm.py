"""DeciLM's configuration: Llama's, and a block of settings per layer, readable as attributes."""

from transformers.models.llama.configuration_llama import LlamaConfig


class _Settings(dict):
    """A dict whose keys are attributes: JSON can hold it, and readers ask `block.ffn.ffn_mult`."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _settings(value):
    return _Settings({key: _settings(item) for key, item in value.items()}) if isinstance(value, dict) else value


class DeciLMConfig(LlamaConfig):
    model_type = "nemotron-nas"

    def __init__(self, block_configs=None, **kwargs):
        super().__init__(**kwargs)
        self.block_configs = [_settings(block) for block in block_configs or []]
