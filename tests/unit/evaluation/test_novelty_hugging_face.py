"""Novelty of a Hugging Face model: against its own hidden states, and against the checkpoint it was exported from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_tlm.errors import ConfigError, DataError
from megatron_tlm.evaluation.model import whole_model
from megatron_tlm.evaluation.novelty import measure_novelty
from megatron_tlm.evaluation.novelty_hugging_face import hugging_face_novelty, load_hugging_face, load_tokenizer
from megatron_tlm.export.hugging_face import export_hugging_face
from tests.unit.export.trained import save_model, small_config

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(3))


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2)
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config).eval()
    return model


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    model: torch.nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes)).eval()
    return model


@torch.no_grad()
@pytest.mark.parametrize("build", [gpt2, llama])
def test_by_hand_from_hidden_states(build: object) -> None:
    model = build()  # type: ignore[operator]
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    found = hugging_face_novelty(model, [TOKENS[:1], TOKENS[1:]])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in layers)
    hidden = model(TOKENS, output_hidden_states=True).hidden_states
    # The last hidden state has gone through the final norm: only the layers before it can be told from outside.
    for layer in range(2):
        h, out = hidden[layer], hidden[layer + 1]
        expected = float(torch.cosine_similarity(out - h, h, dim=-1).mean())
        assert found.layers[layer].rho_block == pytest.approx(expected, abs=1e-5)
    norm = layers[1].ln_2 if hasattr(layers[1], "ln_2") else layers[1].post_attention_layernorm
    seen = []
    norm.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(TOKENS)
    added = layers[1].mlp(norm(seen[0]))
    expected = float(torch.cosine_similarity(added, hidden[1], dim=-1).mean())
    assert found.layers[1].rho_mlp == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        {"mixer": "gated_attention"},
        {"cms_levels": 3, "multiple": 16},
        {"mixer": "titans_lmm", "memory_chunk_size": 4, "memory_persistent_tokens": 8},
    ],
    ids=["gated", "hope", "titans"],
)
def test_an_export_as_remote_code_is_as_new_as_its_checkpoint(kind: dict[str, Any], tmp_path: Path) -> None:
    """Its layers hold a chain of MLPs, each of which adds itself to the stream."""
    path, stage, _ = save_model(tmp_path / "ck", small_config(**kind))
    assert export_hugging_face(path, tmp_path / "hf").flavour == "remote"
    theirs = hugging_face_novelty(load_hugging_face(str(tmp_path / "hf"), trust_remote_code=True), [TOKENS])
    ours = measure_novelty(whole_model(stage), [TOKENS])
    assert torch.tensor(theirs.layers).allclose(torch.tensor(ours.layers), atol=1e-5)
    assert theirs.num_tokens == ours.num_tokens


def test_code_that_comes_along_is_not_run_unasked(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(mixer="gated_attention"))
    export_hugging_face(path, tmp_path / "hf")
    for load in (load_hugging_face, load_tokenizer):
        (tmp_path / "hf" / "modeling_tlm.py").write_text("raise SystemExit('it ran')")
        with pytest.raises(
            ConfigError, match=r"does not load \(.*\); where it brings code that you trust, give --trust"
        ):
            load(str(tmp_path / "hf"))


def test_a_tapered_llama_needs_its_code(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    assert export_hugging_face(path, tmp_path / "hf").flavour == "tapered"
    with pytest.raises(ConfigError, match=r"has a model that does not load .* give --trust-remote-code"):
        load_hugging_face(str(tmp_path / "hf"))


def test_a_list_of_experts_is_no_mlp() -> None:
    model = llama()
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.mlp = torch.nn.ModuleList([layer.mlp])  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="has no list of layers that hold an `mlp` each"):
        hugging_face_novelty(model, [TOKENS])


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json; give the directory"):
        load_hugging_face(str(tmp_path))
    with pytest.raises(ConfigError, match="model = Linear has no list of layers that hold an `mlp` each"):
        hugging_face_novelty(torch.nn.Linear(2, 2), [TOKENS])
    with pytest.raises(DataError, match="ids up to 70 leave the model's vocabulary of 50"):
        hugging_face_novelty(llama(), [TOKENS.new_full((1, 4), 70)])
