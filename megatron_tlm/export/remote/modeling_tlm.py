"""A language model of megatron_tlm whose mixer or chain of MLPs no class of the library has.

    h = h + mixer(norm(h)), then for each MLP of the layer  h = h + down(silu(gate(n)) * up(n)), n = norm(h)

`mixer` is attention, gated_attention (arXiv:2505.06708), titans_lmm or titans_mag (arXiv:2501.00663); a layer's width
(arXiv:2606.23670) is shared by `cms_levels` MLPs (arXiv:2512.24695).

Shapes: B batch, S new tokens, P persistent tokens, T = P + tokens seen, n heads, H their width, C tokens of a chunk.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .configuration_tlm import TlmConfig
from .layers_tlm import TlmMemory, TlmMLP, TlmRMSNorm, linear, wide

# Version 5 calls it `cache`, version 4 `past_key_values`.
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class TlmState:
    """What a model remembers of the tokens it has read: their number, and tensors by name for each layer."""

    is_compileable = is_croppable = False
    is_linear = (False,)

    def __init__(self, num_layers):
        self.layers = [{} for _ in range(num_layers)]
        self.length = 0

    def get_seq_length(self, layer_idx=0):
        return self.length

    def reorder_cache(self, beam_idx):
        for layer in self.layers:
            for name, tensor in layer.items():
                layer[name] = tensor.index_select(0, beam_idx.to(tensor.device))


def rotated(x, positions, base):
    """The halves of each head [B, S, n, H] turned together, by angles of positions [1 or B, S]."""
    exponents = torch.arange(0, x.shape[-1], 2, device=x.device).to(wide(x).dtype) / x.shape[-1]
    angles = (positions.to(exponents.dtype).unsqueeze(-1) * (1.0 / base**exponents)).unsqueeze(2)
    (first, second), cos, sin = wide(x).chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class TlmAttention(nn.Module):
    """Grouped-query attention; in gated_attention the heads' outputs are multiplied by a sigmoid of the input."""

    def __init__(self, config):
        super().__init__()
        heads, groups, head = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.head_width, self.base = head, config.rope_theta
        self.norm = TlmRMSNorm(config, config.hidden_size)
        self.q_proj, self.o_proj = linear(config, heads * head), nn.Linear(heads * head, config.hidden_size, bias=False)
        self.k_proj, self.v_proj = linear(config, groups * head), linear(config, groups * head)
        self.q_norm, self.k_norm = (TlmRMSNorm(config, head) if config.qk_norm else nn.Identity() for _ in "qk")
        self.g_proj = None
        if config.mixer == "gated_attention":
            self.g_proj = linear(config, heads * head if config.attention_gate == "elementwise" else heads)

    def heads(self, x, positions):
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (project(x).unflatten(-1, (-1, self.head_width)) for project in projections)
        q, k = rotated(self.q_norm(q), positions, self.base), rotated(self.k_norm(k), positions, self.base)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, h, past, positions, mask, state):
        x = self.norm(h)
        q, k, v = self.heads(x, positions)
        if state is not None:
            k, v = (_behind(state.get(name), new) for name, new in (("keys", k), ("values", v)))
            state["keys"], state["values"] = k, v
        y = attend(q, k, v, mask).transpose(1, 2)
        if self.g_proj is not None:
            y = y * torch.sigmoid(wide(self.g_proj(x))).to(y.dtype).unflatten(-1, (y.shape[2], -1))
        return h + self.o_proj(y.flatten(2))


def attend(q, k, v, mask=None):
    """The last query is that of the last key; `mask` (True: seen) is for what is not just causal."""
    new, seen = q.shape[2], k.shape[2]
    if mask is None and 1 < new < seen:
        mask = torch.ones(new, seen, dtype=torch.bool, device=q.device).tril(seen - new)
    causal = mask is None and new > 1
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def _behind(past, new):
    return new if past is None else torch.cat((past, new), dim=2)


class TlmTitansLmm(nn.Module):
    """A memory in the place of attention."""

    def __init__(self, config):
        super().__init__()
        heads, head = config.num_attention_heads, config.head_dim
        self.norm = TlmRMSNorm(config, config.hidden_size)
        self.persistent = _persistent(config)
        self.memory, self.memory_norm = TlmMemory(config), TlmRMSNorm(config, heads, head)
        self.z_proj, self.o_proj = linear(config, heads * head), nn.Linear(heads * head, config.hidden_size, bias=False)

    def forward(self, h, past, positions, mask, state):
        x = self.norm(h)
        y = self.memory_norm(read(self.memory, self.persistent, x, past, state)).flatten(2)
        return h + self.o_proj(y * torch.sigmoid(wide(self.z_proj(x))).to(y.dtype))


class TlmTitansMag(TlmAttention):
    """Attention to the persistent tokens and over a window, gated by a memory of everything before."""

    def __init__(self, config):
        super().__init__(config)
        sizes = config.num_attention_heads, config.head_dim
        self.window, self.persistent = config.attention_window, _persistent(config)
        self.memory = TlmMemory(config)
        self.attention_norm, self.memory_norm = TlmRMSNorm(config, *sizes), TlmRMSNorm(config, *sizes)

    def forward(self, h, past, positions, mask, state):
        x = self.norm(h)
        gate = torch.sigmoid(wide(self.memory_norm(read(self.memory, self.persistent, x, past, state))))
        front = 0 if self.persistent is None else self.persistent.shape[0]
        q, k, v = self.heads(x, front + positions)
        if front and past == 0:
            _, *of_front = self.heads(self.persistent.unsqueeze(0), torch.arange(front, device=x.device).unsqueeze(0))
            k, v = (_behind(y.expand(x.shape[0], -1, -1, -1), new) for y, new in zip(of_front, (k, v), strict=True))
        if state is not None:
            k, v = (_behind(state.get(name), new) for name, new in (("keys", k), ("values", v)))
            kept = min(self.window - 1, k.shape[2] - front)
            for name, y in (("keys", k), ("values", v)):
                state[name] = torch.cat((y[:, :, :front], y[:, :, y.shape[2] - kept :]), dim=2)
        y = self.attention_norm(attend_window(q, k, v, front, self.window).transpose(1, 2))
        return h + self.o_proj((y * gate.to(y.dtype)).flatten(2))


def attend_window(q, k, v, front, window):
    """Attention to `front` keys and to the `window` last ones, a window of queries at a time."""
    new, seen = q.shape[2], k.shape[2] - front
    if seen <= window:
        return attend(q, k, v)
    outputs = []
    for start in range(seen - new, seen, window):
        stop, oldest = min(start + window, seen), max(0, start - window + 1)
        places = torch.arange(oldest, stop, device=q.device)
        ages = places[start - oldest :].unsqueeze(1) - places
        mask = F.pad((ages >= 0) & (ages < window), (front, 0), value=True)
        keys, values = (torch.cat((y[:, :, :front], y[:, :, front + oldest : front + stop]), dim=2) for y in (k, v))
        outputs.append(attend(q[:, :, start - seen + new : stop - seen + new], keys, values, mask))
    return torch.cat(outputs, dim=2)


def read(memory, persistent, x, past, state):
    """What the memory answers at the new tokens; before the first of all it reads the persistent ones."""
    tokens = x if persistent is None or past else torch.cat((persistent.expand(x.shape[0], -1, -1), x), dim=1)
    return memory(tokens, past, {} if state is None else state)[:, -x.shape[1] :]


def _persistent(config):
    size = (config.memory_persistent_tokens, config.hidden_size)
    return nn.Parameter(torch.randn(size) * config.initializer_range) if size[0] else None


MIXERS = {
    "attention": TlmAttention,
    "gated_attention": TlmAttention,
    "titans_lmm": TlmTitansLmm,
    "titans_mag": TlmTitansMag,
}


class TlmLayer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.mixer = MIXERS[config.mixer](config)
        self.mlp = nn.ModuleList(TlmMLP(config, width) for width in config.mlp_widths(layer))

    def forward(self, h, *places):
        h = self.mixer(h, *places)
        for mlp in self.mlp:
            h = mlp(h)
        return h


class TlmPreTrainedModel(PreTrainedModel):
    config_class = TlmConfig
    base_model_prefix = "model"
    _no_split_modules = ("TlmLayer",)
    _supports_sdpa = True


class TlmModel(TlmPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TlmLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = TlmRMSNorm(config, config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        output_hidden_states=False,
        **kwargs,
    ):
        h = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        state = cache if cache is not None else past_key_values
        if state is None and (self.config.use_cache if use_cache is None else use_cache):
            state = TlmState(len(self.layers))
        if not isinstance(state, TlmState | None):
            raise ValueError(f"cache = {type(state).__name__} is of another model; leave it out, or give a TlmState")
        past = 0 if state is None else state.length
        positions, mask = self.places(attention_mask, position_ids, past, h)
        seen = [h]
        for index, layer in enumerate(self.layers):
            h = layer(h, past, positions, mask, None if state is None else state.layers[index])
            seen.append(h)
        h = seen[-1] = self.norm(h)
        if state is not None:
            state.length += h.shape[1]
        return BaseModelOutputWithPast(
            last_hidden_state=h, hidden_states=tuple(seen) if output_hidden_states else None, **{_CACHE: state}
        )

    def places(self, attention_mask, position_ids, past, h):
        """Positions [1 or B, S], and a mask [B, 1, S, past + S] where a batch is padded, else None."""
        end = past + h.shape[1]
        positions = torch.arange(past, end, device=h.device).unsqueeze(0)
        if attention_mask is not None and attention_mask.shape[1:] != (end,):
            raise ValueError(
                f"attention_mask = {list(attention_mask.shape)} but there are {end} tokens; give one for each"
            )
        seen = None if attention_mask is None or attention_mask.all() else attention_mask.bool()
        if self.config.mixer.startswith("titans"):
            first_come = seen is None or (seen[:, 1:] <= seen[:, :-1]).all()
            if not first_come or (position_ids is not None and (position_ids != positions).any()):
                raise ValueError(
                    "attention_mask or position_ids = padding in front of a token, which the memory would read; "
                    "pad on the right, or generate one length at a time"
                )
            return positions, None
        mask = None
        if seen is not None:
            positions = (seen.cumsum(1) - 1).clamp(min=0)[:, past:]
            causal = torch.ones(end, end, dtype=torch.bool, device=h.device).tril()
            # A padding token sees itself: before torch 2.5 a row that sees nothing is NaN.
            mask = ((causal & seen.unsqueeze(1)) | causal.diag().diag())[:, None, past:]
        return (positions if position_ids is None else position_ids), mask


class TlmForCausalLM(TlmPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (the library's own form)

    def __init__(self, config):
        super().__init__(config)
        self.model = TlmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # so that generate takes the state that forward makes

    def forward(self, *args, labels=None, logits_to_keep=0, **kwargs):
        outputs = self.model(*args, **kwargs)
        h = outputs.last_hidden_state
        logits = self.lm_head(h[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else h[:, logits_to_keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, **{_CACHE: getattr(outputs, _CACHE)}
        )
