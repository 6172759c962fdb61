"""GGUF files: read back by ggml's own reader, computed with the arithmetic of llama.cpp's graph, and by llama.cpp."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from megatron_tlm.errors import ExportError
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.export.gguf import export_gguf
from megatron_tlm.export.gguf_file import GgufTensor, GgufWriter
from tests.unit.export.texts import TEXTS, train_like
from tests.unit.export.trained import VOCAB, logits_of, save_model, small_config, tokens

gguf = pytest.importorskip("gguf")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings by key, tensors by name in float32."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for item in reader.tensors:
        data = torch.from_numpy(np.array(item.data))
        if item.tensor_type.name == "BF16":
            data = data.view(torch.bfloat16)
        tensors[item.name] = data.float().view(tuple(int(extent) for extent in item.shape[::-1]))
    return {key: field.contents() for key, field in reader.fields.items()}, tensors


def graph(settings: dict[str, Any], tensors: dict[str, Tensor], ids: Tensor) -> Tensor:
    """llama.cpp's llama and deci: RMSNorm, rotary pairs that are neighbours, grouped queries, SwiGLU."""
    name = settings["general.architecture"]
    get = {key.removeprefix(f"{name}."): value for key, value in settings.items()}
    head, epsilon = get["rope.dimension_count"], get["attention.layer_norm_rms_epsilon"]
    x = tensors["token_embd.weight"][ids]
    batch, length, width = x.shape
    angles = torch.outer(torch.arange(length), get["rope.freq_base"] ** -(torch.arange(0, head, 2) / head))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def turned(y: Tensor) -> Tensor:
        even, odd = y[..., 0::2], y[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    def weight(layer: int, part: str) -> Tensor:
        return tensors[f"blk.{layer}.{part}.weight"]

    for layer in range(get["block_count"]):
        y = F.rms_norm(x, (width,), weight(layer, "attn_norm"), epsilon)
        q, k, v = (F.linear(y, weight(layer, f"attn_{part}")).view(batch, length, -1, head) for part in "qkv")
        q, k, v = turned(q).transpose(1, 2), turned(k).transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), weight(layer, "attn_output"))
        y = F.rms_norm(x, (width,), weight(layer, "ffn_norm"), epsilon)
        inner = F.silu(F.linear(y, weight(layer, "ffn_gate"))) * F.linear(y, weight(layer, "ffn_up"))
        x = x + F.linear(inner, weight(layer, "ffn_down"))
    x = F.rms_norm(x, (width,), tensors["output_norm.weight"], epsilon)
    return F.linear(x, tensors.get("output.weight", tensors["token_embd.weight"]))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("schedule", ["cosine", "uniform"])
def test_llama_cpp_s_arithmetic_gives_our_logits(schedule: str, tied: bool, tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config(schedule=schedule, tied=tied))
    seen: list[tuple[int, int]] = []
    exported = export_gguf(path, tmp_path / "m.gguf", progress=lambda *both: seen.append(both))
    settings, tensors = read(tmp_path / "m.gguf")
    name = "deci" if schedule == "cosine" else "llama"
    assert exported.architecture == settings["general.architecture"] == name
    widths = [192, 160, 96, 64] if schedule == "cosine" else 128
    assert settings[f"{name}.feed_forward_length"] == widths
    assert settings[f"{name}.attention.head_count_kv"] == ([2] * 4 if schedule == "cosine" else 2)
    assert settings[f"{name}.vocab_size"] == VOCAB
    assert ("output.weight" in tensors) == (not tied)
    assert seen[-1] == (4 * plan.parameters,) * 2
    torch.testing.assert_close(
        graph(settings, tensors, tokens()), logits_of(stage, plan, tokens()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrices_are_as_asked_and_norms_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    export_gguf(path, tmp_path / "m.gguf", dtype=dtype)
    kinds = {item.name: item.tensor_type.name for item in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    short = "BF16" if dtype == torch.bfloat16 else "F16"
    assert kinds["blk.1.ffn_down.weight"] == kinds["token_embd.weight"] == short
    assert kinds["blk.1.ffn_norm.weight"] == kinds["output_norm.weight"] == "F32"
    _, full = read_both(path, tmp_path)
    _, half = read(tmp_path / "m.gguf")
    assert all(torch.equal(half[name], full[name].to(dtype).float()) for name in full if full[name].dim() == 2)


def read_both(path: Path, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    export_gguf(path, tmp_path / "full.gguf", dtype=torch.float32)
    return read(tmp_path / "full.gguf")


def test_the_vocabulary_is_the_tokenizer_s(tmp_path: Path) -> None:
    file = train_like("ours", tmp_path)
    library = SentencePieceProcessor(model_file=str(file))
    path, *_ = save_model(tmp_path / "ck", small_config(), vocab=len(library) + 3)
    export_gguf(path, tmp_path / "m.gguf", tokenizer=file)
    settings, _ = read(tmp_path / "m.gguf")
    get = {key.removeprefix("tokenizer.ggml."): value for key, value in settings.items()}
    assert get["model"] == "llama"
    assert get["tokens"][: len(library)] == [library.id_to_piece(index) for index in range(len(library))]
    assert get["scores"][: len(library)] == [library.get_score(index) for index in range(len(library))]
    assert get["token_type"][:5] == [2, 3, 3, 3, 6]
    assert get["token_type"][-3:] == [5, 5, 5]
    assert (get["bos_token_id"], get["eos_token_id"], get["unknown_token_id"]) == (1, 2, 0)
    assert get["add_space_prefix"] is get["add_bos_token"] is get["remove_extra_whitespaces"] is False


def test_without_a_sentencepiece_model_ids_are_all_there_is(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    exported = export_gguf(path, tmp_path / "m.gguf")
    assert exported.notes == ("no sentencepiece model, so the file knows token ids alone",)
    assert read(tmp_path / "m.gguf")[0]["tokenizer.ggml.model"] == "no_vocab"


def test_what_has_no_graph_is_refused(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config(qk_norm=True))
    with pytest.raises(ExportError, match=r"qk_norm = true has no graph in llama\.cpp"):
        export_gguf(path, tmp_path / "m.gguf")
    path, *_ = save_model(tmp_path / "gated", small_config(mixer="gated_attention"))
    with pytest.raises(ExportError, match=r"mixer = gated_attention is not among what llama\.cpp has a graph for"):
        export_gguf(path, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_a_file_in_use_is_kept_and_a_failure_leaves_none(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "ck", small_config())
    (tmp_path / "mine.gguf").write_text("mine")
    with pytest.raises(ExportError, match=r"mine\.gguf is already there; give a new file"):
        export_gguf(path, tmp_path / "mine.gguf")
    assert (tmp_path / "mine.gguf").read_text() == "mine"

    def fail(done: int, whole: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_gguf(path, tmp_path / "m.gguf", progress=fail)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["ck", "mine.gguf"]


def test_a_writer_takes_what_was_announced_in_that_order(tmp_path: Path) -> None:
    tensors = [GgufTensor("a", (2, 3), torch.float32), GgufTensor("b", (2,), torch.float32)]
    with GgufWriter(tmp_path / "x", {}, tensors) as writer:
        with pytest.raises(ExportError, match="write in the header's order"):
            writer.append("b", torch.ones(2))
        writer.append("a", torch.ones(1, 3))
        with pytest.raises(ExportError, match="a was not whole when the file was closed"):
            writer.finish()
        with pytest.raises(ExportError, match="36 bytes but 24 were announced"):
            writer.append("a", torch.ones(2, 3))


class LlamaCpp:
    """A file in llama.cpp itself, keys and values in float32."""

    def __init__(self, path: Path) -> None:
        library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is built from source: half an hour")
        options = {
            "n_ctx": 64,
            "n_threads": 1,
            "n_threads_batch": 1,
            "logits_all": True,
            "flash_attn": False,
            "verbose": False,
        }
        self.model = library.Llama(str(path), type_k=0, type_v=0, **options)

    def logits(self, ids: list[int]) -> Tensor:
        self.model.reset()
        self.model.eval(ids)
        return torch.from_numpy(np.array(self.model.scores[: len(ids)]))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("schedule", ["cosine", "uniform"])
def test_llama_cpp_computes_our_logits_and_text(schedule: str, tied: bool, tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config(schedule=schedule, tied=tied))
    export_gguf(path, tmp_path / "m.gguf")
    theirs, ids = LlamaCpp(tmp_path / "m.gguf"), tokens(batch=1, length=29)
    torch.testing.assert_close(theirs.logits(ids[0].tolist()), logits_of(stage, plan, ids)[0], rtol=1e-5, atol=2e-6)
    text = ids[0, :5].tolist()
    for _ in range(20):
        text.append(int(theirs.logits(text)[-1].argmax()))
    assert text[5:] == list(generate(stage, text[:5], max_new_tokens=20, eod_id=None))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_llama_cpp_reads_half_precision(dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    path, stage, plan = save_model(tmp_path / "ck", small_config())
    export_gguf(path, tmp_path / "m.gguf", dtype=dtype)
    ids = tokens(batch=1, length=29)
    ours = logits_of(stage, plan, ids)[0]
    found = LlamaCpp(tmp_path / "m.gguf").logits(ids[0].tolist())
    assert (found - ours).abs().max() < tolerance * ours.abs().max()


def test_llama_cpp_quantises_widths_that_are_multiples_of_256(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 4, "kv_channels": 32}
    config = small_config(multiple=256)
    config = replace(config, model=replace(config.model, ffn_hidden_size=1024, **sizes))
    path, stage, plan = save_model(tmp_path / "ck", config)
    assert plan.shape.widths == (1536, 1280, 768, 512)
    export_gguf(path, tmp_path / "m.gguf")
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is built from source: half an hour")
    wish = library.llama_model_quantize_default_params()
    wish.ftype = library.LLAMA_FTYPE_MOSTLY_Q6_K
    assert library.llama_model_quantize(bytes(tmp_path / "m.gguf"), bytes(tmp_path / "q6.gguf"), wish) == 0
    assert (tmp_path / "q6.gguf").stat().st_size < 0.25 * (tmp_path / "m.gguf").stat().st_size
    ids = tokens(batch=1, length=29)
    ours = logits_of(stage, plan, ids)[0]
    assert (LlamaCpp(tmp_path / "q6.gguf").logits(ids[0].tolist()) - ours).norm() < 0.12 * ours.norm()


def test_llama_cpp_reads_text_as_sentencepiece_does(tmp_path: Path) -> None:
    file = train_like("ours", tmp_path)
    library = SentencePieceProcessor(model_file=str(file))
    path, *_ = save_model(tmp_path / "ck", small_config(), vocab=len(library))
    export_gguf(path, tmp_path / "m.gguf", tokenizer=file)
    model = LlamaCpp(tmp_path / "m.gguf").model
    for text in TEXTS:
        assert model.tokenize(text.encode(), add_bos=False) == library.encode(text)
