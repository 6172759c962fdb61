"""Llama whose MLPs have a width per layer, read from `block_configs` in config.json. Nothing else differs."""

import copy

from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaMLP, LlamaModel

from .configuration_decilm import DeciLMConfig


def _mlp_config(config, layer):
    flat, ffn = copy.copy(config), config.block_configs[layer]["ffn"]
    if "ffn_mult" in ffn:
        width = int(2 * ffn["ffn_mult"] * config.hidden_size / 3)
        flat.intermediate_size = (width + 255) // 256 * 256
    else:
        flat.intermediate_size = ffn["intermediate_size"]
    return flat


class DeciLMModel(LlamaModel):
    config_class = DeciLMConfig

    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.mlp = LlamaMLP(_mlp_config(config, index))
        self.post_init()


class DeciLMForCausalLM(LlamaForCausalLM):
    config_class = DeciLMConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = DeciLMModel(config)
        self.post_init()
