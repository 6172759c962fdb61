"""README.md of an exported model: what it is, how it was trained, how to load it."""

from collections.abc import Mapping
from typing import Any

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.export.flavours import Written
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import build_units

_LOADING = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}"{trust})
ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))
```
"""

_FLAVOURS = {
    "plain": "A stock `{causal}`: no remote code.",
    "tapered": (
        "Each layer's MLP has its own width (`per_layer_config`). The stock `{family}` class reads one width only, so "
        "a short file of remote code comes along; a library that builds per-layer widths itself needs none."
    ),
    "padded": (
        "Every MLP is zero-padded to the widest layer, which makes this a stock `{causal}` without remote code. The "
        "logits are those of the tapered model; the zeros cost memory and time."
    ),
    "deci": (
        "Each layer's MLP has its own width, in the spelling of DeciLM (`block_configs`) that vLLM and others know "
        "natively; transformers loads it with the remote code that comes along."
    ),
    "remote": (
        "No class of transformers computes this model, so it comes as remote code that needs torch and transformers "
        "alone. Fast kernels and other engines do not know it."
    ),
}


def model_card(name: str, facts: Facts, written: Written, *, has_tokenizer: bool) -> str:
    """The card as Markdown with the front matter that model hubs read."""
    shape = facts.shape
    parameters = sum(unit.num_parameters for unit in build_units(shape))
    family = str(written.config["model_type"]).capitalize()
    causal = str(written.config["architectures"][0])
    tags = ["text-generation", "megatron_tlm", *(["tapered-language-model"] if len(set(shape.widths)) > 1 else [])]
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:", *(f"- {t}" for t in tags)]
    rows = {
        "parameters": f"{parameters:,}",
        "layers x width": f"{shape.num_layers} x {shape.hidden_size}",
        "heads (key/value)": f"{shape.num_attention_heads} ({shape.num_query_groups}) of {shape.kv_channels}",
        **_mixing(shape),
        "MLP width per layer": ", ".join(map(str, shape.widths)),
        "vocabulary": f"{shape.vocab_size:,}",
        "embeddings": "tied" if shape.tied_embeddings else "untied",
        "trained for": f"{facts.step:,} steps, {facts.consumed_tokens:,} tokens",
        **_training(facts.config),
    }
    trust = ", trust_remote_code=True" if written.code else ""
    how = _LOADING.format(name=name, trust=trust) if has_tokenizer else _without_tokenizer(name, trust)
    taper = (
        "A Tapered Language Model ([arXiv:2606.23670](https://arxiv.org/abs/2606.23670)): wide MLPs at the bottom, "
        "narrow ones at the top, the total unchanged. "
        if len(set(shape.widths)) > 1
        else ""
    )
    return "\n".join(
        [
            *front,
            "---",
            "",
            f"# {name}",
            "",
            f"{taper}Trained with megatron_tlm.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {label} | {value} |" for label, value in rows.items()),
            "",
            _FLAVOURS[written.flavour].format(family=family, causal=causal),
            "",
            how,
            *(f"\nNote: {note}." for note in written.notes),
            "\nA base model: it continues text and was not taught to follow instructions or to decline any.",
            "",
        ]
    )


def _mixing(shape: ModelShape) -> dict[str, str]:
    """Rows on what is not plain attention with one MLP per layer."""
    rows = {}
    if shape.mixer == "gated_attention":
        rows["mixer"] = (
            f"Gated Attention, {shape.attention_gate} ([arXiv:2505.06708](https://arxiv.org/abs/2505.06708))"
        )
    elif shape.memory_chunk_size:
        rows["mixer"] = (
            f"Titans, {shape.mixer.removeprefix('titans_').upper()} "
            "([arXiv:2501.00663](https://arxiv.org/abs/2501.00663)); padding in front of a text is refused, since the "
            "memory would read it: generate one text at a time, or texts of one length"
        )
    if shape.cms_levels > 1:
        rows["MLPs per layer"] = (
            f"{shape.cms_levels} in a row, which share its width ([arXiv:2512.24695](https://arxiv.org/abs/2512.24695))"
        )
    return rows


def _without_tokenizer(name: str, trust: str) -> str:
    return (
        "No tokenizer was saved with this model; it reads token ids.\n\n```python\n"
        "from transformers import AutoModelForCausalLM\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{name}"{trust})\n```\n'
    )


def _training(config: Mapping[str, Any]) -> dict[str, str]:
    """What the run's configuration says of how it was trained, as far as it is there."""
    wanted = {
        "optimizer": ("lr", "min_lr", "lr_decay_style", "weight_decay", "adam_beta1", "adam_beta2", "clip_grad"),
        "training": ("global_batch_size", "bf16", "seed"),
        "model": ("seq_length",),
    }
    found = {}
    for section, keys in wanted.items():
        given = config.get(section)
        if isinstance(given, Mapping):
            told = [f"{key} {given[key]}" for key in keys if given.get(key) is not None]
            if told:
                found[section] = ", ".join(told)
    return found
