"""Configuration of a language model of megatron_tlm: Llama's, `mixer` and what it needs, and MLP widths per layer."""

from transformers import PretrainedConfig


class TlmConfig(PretrainedConfig):
    model_type = "megatron_tlm"

    def __init__(
        self,
        cms_levels=1,
        cms_multiple=1,
        memory_persistent_tokens=0,
        use_cache=True,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.cms_levels, self.cms_multiple = cms_levels, cms_multiple
        self.memory_persistent_tokens, self.use_cache = memory_persistent_tokens, use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    def mlp_widths(self, layer):
        """Even shares of the layer's width in multiples of `cms_multiple`, what is left over to the first levels."""
        per_layer = getattr(self, "per_layer_config", {})
        if isinstance(per_layer, dict):
            own = {int(key): value for key, value in per_layer.items()}.get(layer, {})
            width = own.get("intermediate_size", self.intermediate_size)
        else:  # transformers 5.14 and later make a configuration of each
            width = per_layer[layer].intermediate_size
        units, levels = width // self.cms_multiple, self.cms_levels
        return [self.cms_multiple * ((units + levels - level - 1) // levels) for level in range(levels)]
