"""A model that comes back, or comes from elsewhere, is the same model; what is not ours to read is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_tlm.checkpoint.compare import differences
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.config.load import load_file as load_config
from megatron_tlm.errors import CheckpointError, ExportError
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.export.hugging_face import export_hugging_face
from megatron_tlm.export.incoming import import_hugging_face
from megatron_tlm.export.tokenizers import tokenizer_files
from megatron_tlm.plan.resolve import build_shape
from tests.unit.export.texts import train_like
from tests.unit.export.trained import VOCAB, logits_of, save_model, small_config, tokens

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"schedule": "uniform"}, {"qk_norm": True}], ids=str)
@pytest.mark.parametrize("flavour", ["tapered", "deci"])
def test_our_own_exports_come_back_bit_for_bit(flavour: str, changes: dict[str, Any], tmp_path: Path) -> None:
    if flavour == "deci" and "qk_norm" in changes:
        pytest.skip("DeciLM has no norms of heads")
    config = small_config(**changes)
    path, _, plan = save_model(tmp_path / "ck", config, dtype=torch.bfloat16)
    export_hugging_face(path, tmp_path / "hf", flavour=flavour, max_file_bytes=50_000)
    seen: list[tuple[int, int]] = []
    imported = import_hugging_face(tmp_path / "hf", tmp_path / "back", progress=lambda *both: seen.append(both))
    assert imported.shape == plan.shape
    assert seen[-1] == (2 * plan.parameters,) * 2
    with Reader(path) as ours, Reader(imported.path) as theirs:
        assert list(differences(ours, theirs)) == []
    back = load_config(imported.config_file)
    assert back.taper == config.taper
    assert build_shape(back, VOCAB) == plan.shape


def test_a_padded_export_comes_back_as_the_wide_model_it_is(tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf", flavour="padded")
    imported = import_hugging_face(tmp_path / "hf", tmp_path / "back")
    assert imported.shape.widths == (192,) * 4
    assert build_shape(load_config(imported.config_file), VOCAB) == imported.shape
    restored = load_model(tmp_path / "back")
    torch.testing.assert_close(logits_of(restored.stage, restored.plan, tokens()), logits_of(stage, plan, tokens()))


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_foreign_model_computes_what_it_did(kind: str, tied: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sliding_window": None} if kind == "Mistral" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=100,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 12345.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        **options,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # norms at 1 would hide a swap
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(tmp_path / "hf")
    imported = import_hugging_face(tmp_path / "hf", tmp_path / "ck")
    restored = load_model(tmp_path / "ck", dtype=torch.float32)
    with torch.no_grad():
        theirs = model(tokens()).logits
    torch.testing.assert_close(logits_of(restored.stage, restored.plan, tokens()), theirs, rtol=1e-5, atol=1e-5)
    assert imported.shape.qk_norm == (kind == "Qwen3")
    assert build_shape(load_config(imported.config_file), VOCAB) == imported.shape


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    file = train_like("ours", tmp_path)
    path, *_ = save_model(tmp_path / "ck", small_config(), vocab=500, tokenizer=file)
    export_hugging_face(path, tmp_path / "hf", tokenizer=tokenizer_files(None, file, None, 64))
    imported = import_hugging_face(tmp_path / "hf", tmp_path / "back")
    restored = load_model(tmp_path / "back")
    assert restored.tokenizer is not None
    assert restored.tokenizer.decode(restored.tokenizer.encode("  the cat")) == "  the cat"
    assert load_config(imported.config_file).data.tokenizer_model == str(imported.path / "tokenizer.model")


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(tokenizer_type="ByteTokenizer"), vocab=257)
    export_hugging_face(path, tmp_path / "hf", tokenizer=tokenizer_files("ByteTokenizer", None, 256, 64))
    import_hugging_face(tmp_path / "hf", tmp_path / "back")
    restored = load_model(tmp_path / "back")
    assert restored.tokenizer is not None
    assert restored.tokenizer.eod_id == 256


def set_config(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def only_pickles(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def point_outside(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))


def cut(directory: Path) -> None:
    with open(directory / "model.safetensors", "r+b") as file:
        file.truncate(1000)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            set_config(model_type="mixtral"),
            r"model_type mixtral \(known are llama, mistral, qwen3, .*, megatron_tlm\)",
        ),
        (set_config(hidden_act="gelu", mlp_bias=True), "hidden_act gelu, mlp_bias true is not computed here"),
        (set_config(rope_parameters={"rope_type": "llama3", "rope_theta": 1.0}), "rope_type llama3"),
        (set_config(rope_scaling={"type": "linear"}, rope_parameters=None), "rope_type linear"),
        (set_config(model_type="mistral", sliding_window=8), "sliding_window 8"),
        (set_config(block_configs=[{"attention": {"no_op": True}}]), r"block_configs\[0\] without a whole layer"),
        (set_config(vocab_size="big"), "vocab_size = big is not a positive integer"),
        (
            set_config(hidden_size=64),
            r"embed_tokens\.weight is \[101, 48\] but config.json asks for \[101, 64\]",
        ),
        (set_config(num_key_value_heads="x"), "num_key_value_heads = x is not a positive integer"),
        (lambda d: (d / "config.json").unlink(), "cannot be read"),
        (lambda d: (d / "config.json").write_text("[]"), "list, not an object"),
        (edit_weights(lambda t: t.pop("model.norm.weight")), r"lacks model\.norm\.weight; give a whole"),
        (
            edit_weights(lambda t: t.pop("model.layers.2.mlp.gate_proj.weight")),
            r"lacks model\.layers\.2\.mlp\.gate_proj",
        ),
        (
            edit_weights(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)})),
            r"has what a Llama-shaped model does not have: model\.layers\.0\.self_attn\.q_proj\.bias",
        ),
        (only_pickles, r"pytorch_model\.bin, a pickle, which can run code and is never read here"),
        (point_outside, r"weight_map = '\.\./x\.safetensors' is not a file beside it"),
        (cut, r"is not a whole tensor file \(.*\); fetch it again"),
        (lambda d: (d / "model.safetensors").unlink(), r"no model\.safetensors and no"),
    ],
)
def test_what_is_not_ours_to_read_is_refused(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    damage(tmp_path / "hf")
    with pytest.raises(ExportError, match=message):
        import_hugging_face(tmp_path / "hf", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    with pytest.raises(ExportError, match=r"save_dir = .*ck already has step-00000007"):
        import_hugging_face(tmp_path / "hf", tmp_path / "ck")


def test_a_folder_that_a_run_saves_in_is_refused(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")
    with FolderLock(tmp_path / "back"):
        unfinished = tmp_path / "back" / ".step-00000000.partial"
        unfinished.mkdir()
        with pytest.raises(CheckpointError, match="back is held by another run"):
            import_hugging_face(tmp_path / "hf", tmp_path / "back")
        assert unfinished.exists()
    import_hugging_face(tmp_path / "hf", tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["config.yaml", "latest", "step-00000000"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_hugging_face(path, tmp_path / "hf")

    def fail(done: int, whole: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(tmp_path / "hf", tmp_path / "back", progress=fail)
    assert not (tmp_path / "back").exists()
