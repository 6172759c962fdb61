"""Mixers and chains of MLPs that no class of transformers has: the remote code of an export is the same model."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.checkpoint.compare import differences
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.config.load import load_file as load_config
from megatron_tlm.errors import ExportError
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.export.hugging_face import ORIGIN_NAME, export_hugging_face
from megatron_tlm.export.incoming import import_hugging_face
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.resolve import build_shape
from tests.unit.export.trained import VOCAB, logits_of, save_model, small_config, tokens

transformers = pytest.importorskip("transformers")

HOPE = {"cms_levels": 3, "multiple": 16}
TITANS = {"memory_chunk_size": 4, "memory_persistent_tokens": 8}
MODELS: dict[str, dict[str, Any]] = {
    "gated": {"mixer": "gated_attention"},
    "gated-headwise-normed-tied": {
        "mixer": "gated_attention",
        "attention_gate": "headwise",
        "qk_norm": True,
        "tied": True,
    },
    "gated-uniform": {"mixer": "gated_attention", "schedule": "uniform"},
    "hope": HOPE,
    "hope-normed-uniform-tied": {**HOPE, "qk_norm": True, "schedule": "uniform", "tied": True},
    "gated-hope": {"mixer": "gated_attention", "cms_levels": 2, "cms_periods": (1, 4), "multiple": 16},
    "lmm": {"mixer": "titans_lmm", **TITANS},
    "lmm-bare-uniform-tied": {
        "mixer": "titans_lmm",
        "memory_chunk_size": 5,
        "memory_persistent_tokens": 0,
        "memory_conv_width": 1,
        "memory_expansion": 1,
        "schedule": "uniform",
        "tied": True,
    },
    "mag": {"mixer": "titans_mag", "attention_window": 6, **TITANS},
    "mag-normed-one-key": {"mixer": "titans_mag", "attention_window": 1, "qk_norm": True, **TITANS},
    "mag-hope-bare": {
        "mixer": "titans_mag",
        "attention_window": 64,
        "memory_chunk_size": 3,
        "memory_persistent_tokens": 0,
        **HOPE,
    },
}
each = pytest.mark.parametrize("kind", MODELS)


def load(path: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, **options).eval()


def exported(kind: str, tmp_path: Path) -> tuple[Stage, Any]:
    """Our model and the directory `hf` of it."""
    path, stage, plan = save_model(tmp_path / "ck", small_config(**MODELS[kind]))
    assert export_hugging_face(path, tmp_path / "hf").flavour == "remote"
    return stage, plan


def cache_of(outputs: Any) -> Any:
    return outputs["cache" if "cache" in outputs else "past_key_values"]


@torch.no_grad()
def assert_same_model(theirs: Any, stage: Stage, plan: Any, ids: Tensor) -> None:
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(theirs(ids).logits, logits_of(stage, plan, ids), rtol=1e-5, atol=1e-5)
    # In float64 rounding is out of the way: what is left would be another function.
    torch.testing.assert_close(
        theirs.double()(ids).logits, logits_of(stage.double(), plan, ids), rtol=1e-11, atol=1e-11
    )
    theirs.float(), stage.float()


@each
def test_the_export_is_the_same_model(kind: str, tmp_path: Path) -> None:
    stage, plan = exported(kind, tmp_path)
    assert_same_model(load(tmp_path / "hf"), stage, plan, tokens(length=29))


@each
@torch.no_grad()
def test_generation_with_state_is_generation_without_and_ours(kind: str, tmp_path: Path) -> None:
    stage, _ = exported(kind, tmp_path)
    theirs, stage = load(tmp_path / "hf", dtype=torch.float64), stage.double()
    prompts = tokens()[:, :5]
    ours = [list(generate(stage, prompt.tolist(), max_new_tokens=20, eod_id=None)) for prompt in prompts]
    drawn = []
    for use_cache in (True, False):
        options = {"max_new_tokens": 20, "use_cache": use_cache, "pad_token_id": 0}
        assert theirs.generate(prompts, do_sample=False, **options)[:, 5:].tolist() == ours
        torch.manual_seed(0)
        drawn.append(theirs.generate(prompts, do_sample=True, top_k=0, **options))
    assert torch.equal(*drawn)
    assert len(drawn[0].unique()) > 10


@each
@torch.no_grad()
def test_reading_piece_by_piece_is_reading_at_once(kind: str, tmp_path: Path) -> None:
    exported(kind, tmp_path)
    theirs, ids = load(tmp_path / "hf", dtype=torch.float64), tokens(length=23)
    whole, pieces, state = theirs(ids, use_cache=False).logits, [], None
    for piece in ids.split((3, 1, 9, 1, 2, 7), dim=1):
        outputs = theirs(piece, cache=state, use_cache=True)
        state = cache_of(outputs)
        pieces.append(outputs.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-11, atol=1e-11)
    assert state.get_seq_length() == 23
    if kind.startswith("mag"):
        config = theirs.config
        kept = min(config.attention_window - 1, 23)
        assert state.layers[0]["keys"].shape[2] == config.memory_persistent_tokens + kept


@pytest.mark.parametrize("kind", ["gated", "lmm", "mag"])
@torch.no_grad()
def test_beams_take_their_state_along(kind: str, tmp_path: Path) -> None:
    exported(kind, tmp_path)
    theirs = load(tmp_path / "hf", dtype=torch.float64)
    found = [
        theirs.generate(
            tokens()[:, :5], max_new_tokens=12, num_beams=3, do_sample=False, use_cache=use_cache, pad_token_id=0
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*found)


@each
def test_it_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    config = small_config(**MODELS[kind])
    path, _, plan = save_model(tmp_path / "ck", config, dtype=torch.bfloat16)
    export_hugging_face(path, tmp_path / "hf", max_file_bytes=50_000)
    imported = import_hugging_face(tmp_path / "hf", tmp_path / "back")
    assert imported.shape == plan.shape
    with Reader(path) as ours, Reader(imported.path) as theirs:
        assert list(differences(ours, theirs)) == []
    back = load_config(imported.config_file)
    assert (back.architecture, back.taper) == (config.architecture, config.taper)


@each
def test_saved_again_by_transformers_it_is_still_the_same_and_comes_back(kind: str, tmp_path: Path) -> None:
    stage, plan = exported(kind, tmp_path)
    load(tmp_path / "hf").save_pretrained(tmp_path / "again")
    assert_same_model(load(tmp_path / "again"), stage, plan, tokens())
    if plan.shape.cms_levels == 2:
        with pytest.raises(ExportError, match=f"cms_levels = 2 have no default periods.*{ORIGIN_NAME}; put it beside"):
            import_hugging_face(tmp_path / "again", tmp_path / "back")
        return
    imported = import_hugging_face(tmp_path / "again", tmp_path / "back")
    assert imported.shape == plan.shape
    assert build_shape(load_config(imported.config_file), VOCAB) == plan.shape


@pytest.mark.parametrize("kind", ["gated", "hope", "gated-headwise-normed-tied"])
@torch.no_grad()
def test_a_padded_batch_is_its_texts_one_by_one(kind: str, tmp_path: Path) -> None:
    exported(kind, tmp_path)
    theirs, ids = load(tmp_path / "hf", dtype=torch.float64), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    alone = theirs(ids[:1, 4:]).logits
    torch.testing.assert_close(theirs(ids, attention_mask=mask).logits[:1, 4:], alone, rtol=1e-11, atol=1e-11)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    grown = theirs.generate(ids, attention_mask=mask, **options)
    assert grown[0, 4:].tolist() == theirs.generate(ids[:1, 4:], **options)[0].tolist()
    assert grown[1].tolist() == theirs.generate(ids[1:], **options)[0].tolist()


@pytest.mark.parametrize("kind", ["lmm", "mag"])
@torch.no_grad()
def test_a_memory_reads_no_padding_in_front_of_a_token(kind: str, tmp_path: Path) -> None:
    exported(kind, tmp_path)
    theirs, ids = load(tmp_path / "hf"), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    behind = theirs(ids, attention_mask=mask)
    assert torch.equal(behind.logits[:, :6], theirs(ids).logits[:, :6])
    with pytest.raises(ValueError, match="padding in front of a token, which the memory would read; pad on the right"):
        theirs(ids[:, :1], cache=cache_of(behind), attention_mask=torch.cat((mask, mask[:, :1]), dim=1))
    with pytest.raises(ValueError, match="padding in front of a token"):
        theirs.generate(ids, attention_mask=mask.flip(1), max_new_tokens=2, pad_token_id=0)
    with pytest.raises(ValueError, match="padding in front of a token"):
        theirs(ids, position_ids=torch.arange(9).unsqueeze(0) % 5)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    exported("gated", tmp_path)
    theirs, ids = load(tmp_path / "hf"), tokens(length=9)
    with pytest.raises(ValueError, match="cache = DynamicCache is of another model"):
        theirs(ids, cache=transformers.DynamicCache())
    with pytest.raises(ValueError, match=r"attention_mask = \[2, 3\] but there are 9 tokens"):
        theirs(ids, attention_mask=torch.ones(2, 3))


def test_a_loss_and_its_gradients_are_there_to_train_on(tmp_path: Path) -> None:
    stage, plan = exported("mag", tmp_path)
    theirs, ids = load(tmp_path / "hf", dtype=torch.float64), tokens(length=9)
    outputs = theirs.train()(ids, labels=ids, output_hidden_states=True)
    expected = torch.nn.functional.cross_entropy(
        logits_of(stage.double(), plan, ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    )
    torch.testing.assert_close(outputs.loss, expected.float())
    outputs.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in theirs.parameters())
    assert [tuple(h.shape) for h in outputs.hidden_states] == [(2, 9, 48)] * 5


@each
def test_a_model_is_built_from_the_configuration_alone(kind: str, tmp_path: Path) -> None:
    _, plan = exported(kind, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    widths = [[mlp.up_proj.out_features for mlp in layer.mlp] for layer in model.model.layers]
    shape = plan.shape
    assert widths == [[shape.level_width(layer, level) for level in range(shape.cms_levels)] for layer in range(4)]
    told = json.loads((tmp_path / "hf" / "config.json").read_text()).get("per_layer_config", {})
    assert [layer["intermediate_size"] for layer in told.values()] == list(
        shape.widths if "uniform" not in kind else ()
    )
    assert torch.isfinite(model(tokens()).logits).all()


def test_without_remote_code_it_is_refused_aloud(tmp_path: Path) -> None:
    exported("gated-uniform", tmp_path)
    with pytest.raises(ValueError, match=r"trust_remote_code|megatron_tlm"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=False)


def test_the_code_needs_torch_and_transformers_alone(tmp_path: Path) -> None:
    exported("mag", tmp_path)
    imported = set()
    for path in (tmp_path / "hf").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).split(".")[0])
    assert imported == {"math", "torch", "transformers"}


@pytest.mark.parametrize("flavour", ["padded", "deci"])
def test_stock_flavours_are_refused_before_a_byte(flavour: str, tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(**MODELS["gated-hope"]))
    with pytest.raises(ExportError, match=f"flavour = {flavour} is for .* has mixer = gated_attention, cms_levels = 2"):
        export_hugging_face(path, tmp_path / "hf", flavour=flavour)
    assert not (tmp_path / "hf").exists()
    assert export_hugging_face(path, tmp_path / "hf", flavour="tapered").flavour == "remote"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gated", {"attention_gate": "none"}, "attention_gate = none does not go with mixer = gated_attention"),
        ("hope", {"attention_gate": "headwise"}, "attention_gate = headwise does not go with mixer = attention"),
        ("gated", {"mixer": "mamba"}, r"shape\.mixer = mamba is not among"),
        ("lmm", {"memory_chunk_size": None}, "memory_chunk_size = None is not a positive integer"),
        ("lmm", {"memory_max_step": "x"}, "is of no model of ours"),
        ("mag", {"attention_window": 0}, "attention_window = 0 is not a positive integer"),
        ("mag", {"memory_persistent_tokens": 7}, "memory_persistent_tokens = 7 is not a multiple"),
        ("hope", {"cms_levels": 2}, r"has what a Llama-shaped model does not have: model\.layers\.0\.mlp\.2"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    exported(kind, tmp_path)
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ExportError, match=message):
        import_hugging_face(tmp_path / "hf", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_the_card_names_the_mixer(tmp_path: Path) -> None:
    exported("mag-hope-bare", tmp_path)
    card = (tmp_path / "hf" / "README.md").read_text()
    for text in ("Titans, MAG", "arXiv:2501.00663", "3 in a row", "trust_remote_code=True", "comes as remote code"):
        assert text in card
