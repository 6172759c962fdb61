"""Llama whose MLPs have a width per layer, read from `per_layer_config` in config.json. Nothing else differs."""

import copy
from contextlib import contextmanager

from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaMLP, LlamaModel


def _mlp_config(config, layer):
    per_layer = config.per_layer_config
    if not isinstance(per_layer, dict):  # transformers 5.14 and later make objects of it
        return per_layer[layer]
    flat = copy.copy(config)
    overrides = per_layer.get(str(layer), per_layer.get(layer, {}))
    flat.intermediate_size = overrides.get("intermediate_size", config.intermediate_size)
    return flat


@contextmanager
def _uniform_build(config):
    """Lets the stock constructor read the one width that it asks for; its MLPs are replaced afterwards."""
    config.allow_global_per_layer_attribute_access = True
    try:
        yield
    finally:
        config.__dict__.pop("allow_global_per_layer_attribute_access", None)


class TaperedLlamaModel(LlamaModel):
    def __init__(self, config):
        # The config itself, not a copy: which attention is used is settled on this object.
        with _uniform_build(config):
            super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.mlp = LlamaMLP(_mlp_config(config, index))
        self.post_init()


class TaperedLlamaForCausalLM(LlamaForCausalLM):
    _auto_class = "AutoModelForCausalLM"  # version 4 saves this file along for that alone

    def __init__(self, config):
        with _uniform_build(config):
            super().__init__(config)
        self.model = TaperedLlamaModel(config)
        self.post_init()
