"""What transformers makes of an export: the same logits, the same greedy text, in every flavour."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.errors import ExportError
from megatron_tlm.evaluation.generate import GREEDY, generate
from megatron_tlm.export.hugging_face import export_hugging_face
from tests.unit.export.trained import logits_of, save_model, small_config, tokens

transformers = pytest.importorskip("transformers")

MODELS: dict[str, dict[str, Any]] = {
    "uniform": {"schedule": "uniform"},
    "uniform-tied": {"schedule": "uniform", "tied": True},
    "tapered": {},
    "tapered-tied": {"tied": True},
    "qk-norm": {"qk_norm": True},
    "qk-norm-uniform": {"qk_norm": True, "schedule": "uniform"},
}


def load(path: Path, *, remote: bool = True, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, trust_remote_code=remote, **options).eval()


@torch.no_grad()
def assert_same_model(theirs: Any, stage: Any, plan: Any) -> None:
    """Logits to 1e-5 of float32, and greedy generation with their cache as without one, and as ours."""
    ids = tokens()
    ours = logits_of(stage, plan, ids)
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(theirs(ids).logits, ours, rtol=1e-5, atol=1e-5)
    prompt = ids[:1, :5]
    for use_cache in (True, False):
        grown = theirs.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=use_cache, pad_token_id=0)
        drawn = list(generate(stage, prompt[0].tolist(), max_new_tokens=8, eod_id=None, sampling=GREEDY))
        assert grown[0, 5:].tolist() == drawn


@pytest.mark.parametrize("kind", MODELS)
def test_the_default_flavour_is_the_same_model(kind: str, tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config(**MODELS[kind]))
    exported = export_hugging_face(path, tmp_path / "hf")
    assert exported.flavour == ("plain" if "uniform" in kind else "tapered")
    model = load(tmp_path / "hf", remote="uniform" not in kind)
    assert type(model).__name__ == ("Tapered" if "uniform" not in kind else "") + (
        "Qwen3ForCausalLM" if "qk" in kind else "LlamaForCausalLM"
    )
    assert_same_model(model, stage, plan)


@pytest.mark.parametrize("kind", ["tapered", "tapered-tied", "qk-norm"])
def test_padded_is_a_stock_class(kind: str, tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config(**MODELS[kind]))
    exported = export_hugging_face(path, tmp_path / "hf", flavour="padded")
    assert not list((tmp_path / "hf").glob("*.py"))
    added = 3 * 48 * (4 * 192 - 512)
    assert exported.notes == (f"padding every MLP to 192 adds {added:,} zero weights; the logits are the same",)
    assert_same_model(load(tmp_path / "hf", remote=False), stage, plan)


@pytest.mark.parametrize("multiple", [32, 256])
def test_deci_loads_whether_or_not_widths_are_rounded(multiple: int, tmp_path: Path) -> None:
    config = small_config(multiple=32)
    if multiple == 256:
        config = replace(
            config, model=replace(config.model, ffn_hidden_size=512), taper=replace(config.taper, width_multiple=256)
        )
    path, stage, plan = save_model(tmp_path / "ck", config)
    exported = export_hugging_face(path, tmp_path / "hf", flavour="deci")
    block = json.loads((tmp_path / "hf" / "config.json").read_text())["block_configs"][0]["ffn"]
    assert ("ffn_mult" in block) == (multiple == 256)
    assert len(exported.notes) == (multiple != 256)
    model = load(tmp_path / "hf")
    assert type(model).__name__ == "DeciLMForCausalLM"
    assert model.config.block_configs[0].attention.n_heads_in_group == 3
    assert_same_model(model, stage, plan)


def test_saved_again_by_transformers_it_is_still_the_same(tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    load(tmp_path / "hf").save_pretrained(tmp_path / "again")
    assert_same_model(load(tmp_path / "again"), stage, plan)


def test_without_remote_code_a_tapered_model_is_refused_aloud(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    with pytest.raises(Exception, match=r"(?i)per-layer attribute|mismatch"):
        load(tmp_path / "hf", remote=False)


def test_the_base_class_builds_from_the_configuration_alone(tmp_path: Path) -> None:
    """What vLLM's generic backend does."""
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, trust_remote_code=True)
    assert [layer.mlp.up_proj.out_features for layer in model.layers] == [192, 160, 96, 64]


def test_shards_and_their_index(tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config())
    seen: list[tuple[int, int]] = []
    exported = export_hugging_face(
        path, tmp_path / "hf", max_file_bytes=100_000, progress=lambda done, whole: seen.append((done, whole))
    )
    files = [name for name in exported.files if name.endswith(".safetensors")]
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 3
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 4 * plan.parameters, "total_parameters": plan.parameters}
    for name, file in index["weight_map"].items():
        with safe_open(str(tmp_path / "hf" / file), "pt") as opened:
            assert name in opened.keys()  # noqa: SIM118 (no mapping)
            assert opened.metadata() == {"format": "pt"}
    assert seen[-1] == (4 * plan.parameters,) * 2
    assert_same_model(load(tmp_path / "hf"), stage, plan)


def test_weights_are_as_saved_unless_asked(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(), dtype=torch.bfloat16)
    export_hugging_face(path, tmp_path / "hf")
    export_hugging_face(path, tmp_path / "wide", dtype=torch.float32)
    with Reader(path) as reader:
        saved = reader.read("layers.1.mlp.down.weight", "weight")
    for name, dtype in (("hf", torch.bfloat16), ("wide", torch.float32)):
        model = load(tmp_path / name, dtype="auto")
        assert model.dtype == dtype
        assert torch.equal(model.model.layers[1].mlp.down_proj.weight, saved.to(dtype))


def test_qk_norm_has_no_place_in_deci(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(qk_norm=True))
    with pytest.raises(ExportError, match="qk_norm = true has no place in DeciLM"):
        export_hugging_face(path, tmp_path / "hf", flavour="deci")


def test_an_unknown_flavour_is_named(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    with pytest.raises(ExportError, match="flavour = vanilla is not among the 3 there are; use tapered, padded, deci"):
        export_hugging_face(path, tmp_path / "hf", flavour="vanilla")


def test_a_target_in_use_is_refused_and_kept(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").touch()
    with pytest.raises(ExportError, match=r"hf is already there; give a new directory"):
        export_hugging_face(path, tmp_path / "hf")
    assert [item.name for item in (tmp_path / "hf").iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())

    def fail(done: int, whole: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_hugging_face(path, tmp_path / "hf", progress=fail)
    assert [item.name for item in tmp_path.iterdir()] == ["ck"]


def test_the_card_tells_what_a_reader_needs(tmp_path: Path) -> None:
    path, _, plan = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "my-model")
    card = (tmp_path / "my-model" / "README.md").read_text()
    for text in (
        "library_name: transformers",
        "# my-model",
        f"| parameters | {plan.parameters:,} |",
        "| MLP width per layer | 192, 160, 96, 64 |",
        "| trained for | 7 steps, 2,240 tokens |",
        "trust_remote_code=True",
        "arXiv:2606.23670",
        "not taught to follow instructions",
    ):
        assert text in card
