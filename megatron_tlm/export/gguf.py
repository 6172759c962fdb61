"""A checkpoint as a GGUF file that llama.cpp loads, widths per layer included.

llama.cpp's `llama` gives every layer the first one's width; `deci` has the same graph and asks per layer. So a
tapered model is written as `deci`, a uniform one as `llama`. Both turn neighbouring pairs where we turn halves: the
rows of each head of q and k are interleaved.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.tensor_file import DTYPES
from megatron_tlm.errors import ExportError
from megatron_tlm.export.families import OWN, family_of, own_parts, tensor_names
from megatron_tlm.export.gguf_file import TENSOR_TYPES, GgufTensor, GgufWriter, Value
from megatron_tlm.export.hugging_face import positions_of
from megatron_tlm.export.sentencepiece_model import UNUSED, read_sentencepiece
from megatron_tlm.export.shards import WEIGHT
from megatron_tlm.plan.shape import ModelShape

_FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
_NAMES = {
    "mixer.norm.weight": "attn_norm.weight",
    "mixer.q.weight": "attn_q.weight",
    "mixer.k.weight": "attn_k.weight",
    "mixer.v.weight": "attn_v.weight",
    "mixer.o.weight": "attn_output.weight",
    "mlp.norm.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate.weight",
    "mlp.up.weight": "ffn_up.weight",
    "mlp.down.weight": "ffn_down.weight",
}
_OUTER_NAMES = {
    "embedding.weight": "token_embd.weight",
    "head.norm.weight": "output_norm.weight",
    "head.output.weight": "output.weight",
}


@dataclass(frozen=True)
class GgufExport:
    """What was written, for the caller to tell."""

    path: Path
    architecture: str
    weight_bytes: int
    notes: tuple[str, ...]


def export_gguf(
    source: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = None,
    tokenizer: Path | None = None,
    end_id: int | None = None,
    progress: Progress | None = None,
) -> GgufExport:
    """Writes checkpoint `source` as the new file `target`, matrices by default in the dtype they have.

    `tokenizer` is a sentencepiece model; without one the file knows ids alone. ExportError before a byte is written
    for a model that llama.cpp has no graph for.
    """
    target = Path(target)
    if target.exists():
        raise ExportError(f"{target} is already there; give a new file")
    with Reader(source) as reader:
        facts = reader.manifest.facts
        shape = facts.shape
        _check(shape)
        dtype = dtype or DTYPES[reader.record("embedding.weight", WEIGHT).dtype]
        if dtype not in TENSOR_TYPES:
            raise ExportError(
                f"dtype = {dtype} has no place in the file; use one of {', '.join(map(str, TENSOR_TYPES))}"
            )
        architecture = "llama" if len(set(shape.widths)) == 1 else "deci"
        settings = _settings(shape, architecture, target.stem, positions_of(facts.config), dtype)
        vocabulary, notes = _vocabulary(shape, tokenizer, end_id)
        tensors = {name: _tensor(reader, name, dtype) for name in tensor_names(shape)}
        size_bytes = sum(tensor.size_bytes for tensor in tensors.values())
        _write(reader, target, settings | vocabulary, tensors, ByteCounter(size_bytes, progress))
    return GgufExport(target, architecture, size_bytes, notes)


def _check(shape: ModelShape) -> None:
    if family_of(shape) == OWN:
        raise ExportError(f"{own_parts(shape)} is not among what llama.cpp has a graph for; use --format hf")
    if shape.qk_norm:
        raise ExportError("qk_norm = true has no graph in llama.cpp with a width per layer; use --format hf")


def _settings(shape: ModelShape, architecture: str, name: str, positions: int, dtype: torch.dtype) -> dict[str, Value]:
    per_layer = architecture == "deci"
    sizes: dict[str, Value] = {
        "block_count": shape.num_layers,
        "context_length": positions,
        "embedding_length": shape.hidden_size,
        "feed_forward_length": list(shape.widths) if per_layer else shape.widths[0],
        "attention.head_count": _each(shape.num_attention_heads, shape, per_layer),
        "attention.head_count_kv": _each(shape.num_query_groups, shape, per_layer),
        "attention.layer_norm_rms_epsilon": float(shape.norm_epsilon),
        "attention.key_length": shape.kv_channels,
        "attention.value_length": shape.kv_channels,
        "rope.freq_base": float(shape.rotary_base),
        "rope.dimension_count": shape.kv_channels,
        "vocab_size": shape.vocab_size,
    }
    general: dict[str, Value] = {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": _FILE_TYPES[dtype],
    }
    return general | {f"{architecture}.{key}": value for key, value in sizes.items()}


def _each(value: int, shape: ModelShape, per_layer: bool) -> Value:
    return [value] * shape.num_layers if per_layer else value


def _vocabulary(
    shape: ModelShape, tokenizer: Path | None, end_id: int | None
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """llama.cpp's sentencepiece vocabulary; ids beyond the tokenizer's are unused pieces."""
    if tokenizer is None or tokenizer.suffix == ".json":
        return {"tokenizer.ggml.model": "no_vocab"}, ("no sentencepiece model, so the file knows token ids alone",)
    model = read_sentencepiece(tokenizer)
    surplus = range(len(model.pieces), shape.vocab_size)
    ids = {
        "bos": model.bos_id,
        "eos": end_id if end_id is not None else model.eos_id,
        "unknown": model.unk_id,
        "padding": model.pad_id,
    }
    settings: dict[str, Value] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*(piece.text for piece in model.pieces), *(f"[PAD{index}]" for index in surplus)],
        "tokenizer.ggml.scores": [*(piece.score for piece in model.pieces), *(-1000.0 for _ in surplus)],
        "tokenizer.ggml.token_type": [*(piece.kind for piece in model.pieces), *(UNUSED for _ in surplus)],
        **{f"tokenizer.ggml.{name}_token_id": id_ for name, id_ in ids.items() if id_ is not None},
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": model.remove_extra_whitespaces,
    }
    return settings, ()


def _tensor(reader: Reader, name: str, dtype: torch.dtype) -> GgufTensor:
    """Norms are float32 in every file: llama.cpp multiplies by them in that."""
    shape = reader.record(name, WEIGHT).shape
    prefix, _, local = name.partition(".")
    if prefix == "layers":
        layer, _, local = local.partition(".")
        theirs = f"blk.{layer}.{_NAMES[local]}"
    else:
        theirs = _OUTER_NAMES[name]
    return GgufTensor(theirs, shape, torch.float32 if len(shape) == 1 else dtype)


def _write(
    reader: Reader, target: Path, settings: dict[str, Value], tensors: dict[str, GgufTensor], count: ByteCounter
) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        with GgufWriter(partial, settings, list(tensors.values())) as writer:
            for name, tensor in tensors.items():
                for block in _blocks(reader, name):
                    writer.append(tensor.name, block.to(tensor.dtype))
                    count.add(block.numel() * tensor.dtype.itemsize)
            writer.finish()
        os.rename(partial, target)
    except OSError as error:
        raise ExportError(f"{target} cannot be written ({error.strerror}); make room or write elsewhere") from error
    finally:
        partial.unlink(missing_ok=True)


def _blocks(reader: Reader, name: str) -> Iterator[torch.Tensor]:
    """A tensor in blocks of a few MB; of q and k one head at a time, its halves interleaved."""
    shape = reader.record(name, WEIGHT).shape
    if name.endswith((".mixer.q.weight", ".mixer.k.weight")):
        head = reader.manifest.facts.shape.kv_channels
        for start in range(0, shape[0], head):
            yield interleave(reader.read(name, WEIGHT, (start, 0), (head, shape[1])))
        return
    whole = ((0,) * len(shape), shape)
    for offset, size in row_blocks(whole, 4):
        yield reader.read(name, WEIGHT, offset, size)


def interleave(head_HD: torch.Tensor) -> torch.Tensor:
    """Rows 0, H/2, 1, H/2 + 1, ... of one head [H, D]: halves that are turned together become neighbours."""
    rows, width = head_HD.shape
    return head_HD.reshape(2, rows // 2, width).transpose(0, 1).reshape(rows, width)
