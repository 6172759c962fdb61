"""A Hugging Face directory looked at from here: which of our models its config.json and tensors make, or why none.

Only JSON and safetensors are read. Nothing of the directory's code runs, and no pickle is opened.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from megatron_tlm.checkpoint.tensor_file import Entry, TensorFile
from megatron_tlm.checkpoint.tiling import Extent
from megatron_tlm.errors import CheckpointError, ExportError, PlanError
from megatron_tlm.export.families import OWN, tensor_names
from megatron_tlm.export.flavours import OWN_SIZES
from megatron_tlm.export.shards import INDEX_NAME
from megatron_tlm.plan.mixers import GATES, find_mixer
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import build_units

MODEL_TYPES = ("llama", "mistral", "qwen3", "nemotron-nas", OWN.model_type)
_FILE = re.compile(r"[\w.-]+\.safetensors")
_BUFFER = re.compile(r".*rotary_emb\.inv_freq")


class NamedWeights(Protocol):
    """Tensors by the library's names, wherever they come from."""

    directory: Path

    @property
    def names(self) -> frozenset[str]: ...

    def entry(self, name: str) -> Entry: ...

    def read(self, name: str, offset: Extent, size: Extent) -> torch.Tensor: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ForeignWeights:
    """The tensors of a directory by the library's names, in one file or several."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = {name: _open(directory / name) for name in sorted(set(_weight_files(directory)))}
        self._home = {key: file for file in self._files.values() for key in file.keys()}  # noqa: SIM118 (no mapping)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._home)

    def entry(self, name: str) -> Entry:
        return self._home[name].entry(name)

    def read(self, name: str, offset: Extent, size: Extent) -> torch.Tensor:
        return self._home[name].read(name, offset, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._home.clear()
        self._files.clear()


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file; ExportError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read ({error}); give a Hugging Face model's directory") from None
    if not isinstance(content, dict):
        raise ExportError(
            f"{path} holds a {type(content).__name__}, not an object; give a Hugging Face model's directory"
        )
    return content


def foreign_shape(config: Mapping[str, Any], config_file: Path, weights: NamedWeights) -> ModelShape:
    """The model; widths are read off the tensors. ExportError naming all that has no place here."""
    address = config_file
    faults = _faults(config)
    if faults:
        raise ExportError(f"{address}: {', '.join(faults)} is not computed here; give a Llama-shaped model")
    layers, hidden = (_integer(config, name, address) for name in ("num_hidden_layers", "hidden_size"))
    heads = _integer(config, "num_attention_heads", address)
    try:
        own = _own_fields(config, address) if config["model_type"] == OWN.model_type else {}
        shape = ModelShape(
            num_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            num_query_groups=_integer(config, "num_key_value_heads", address, heads),
            kv_channels=_integer(config, "head_dim", address, hidden // heads),
            vocab_size=_integer(config, "vocab_size", address),
            widths=_widths(weights, layers, own),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            rotary_base=float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
            norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
            **(own or {"qk_norm": config["model_type"] == "qwen3"}),
        )
        _check_tensors(shape, weights)
    except (PlanError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ExportError(f"{address} is of no model of ours ({error}); give a Llama-shaped one") from None
    return shape


def _own_fields(config: Mapping[str, Any], address: Path) -> dict[str, Any]:
    """What config.json of our own family says beyond Llama's words; ExportError for what cannot be meant."""
    mixer, gate = str(config.get("mixer")), config.get("attention_gate", "none")
    memory = find_mixer(mixer).has_memory
    if gate not in GATES or (gate != "none") != (mixer == "gated_attention"):
        raise ExportError(f"{address}: attention_gate = {gate} does not go with mixer = {mixer}; give the export's own")
    needed = {"memory_chunk_size", "memory_expansion", "memory_conv_width"} if memory else set()
    needed |= {"attention_window"} if mixer == "titans_mag" else set()
    sizes = {name: _integer(config, name, address) for name in OWN_SIZES if name in needed or config.get(name)}
    step = {"memory_max_step": float(config["memory_max_step"])} if memory else {}
    return {"mixer": mixer, "attention_gate": gate, "qk_norm": bool(config.get("qk_norm", False)), **sizes, **step}


def _widths(weights: NamedWeights, layers: int, own: Mapping[str, Any]) -> tuple[int, ...]:
    """Each layer's, over all of its MLPs; ExportError where one is not there."""
    levels = [f".{level}" for level in range(own.get("cms_levels", 1))] if own else [""]
    gates = [[f"model.layers.{layer}.mlp{level}.gate_proj.weight" for level in levels] for layer in range(layers)]
    absent = [name for layer in gates for name in layer if name not in weights.names]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ExportError(f"{weights.directory} lacks {absent[0]}{more}; give all the files")
    return tuple(sum(weights.entry(name).shape[0] for name in layer) for layer in gates)


def _faults(config: Mapping[str, Any]) -> list[str]:
    """Every setting that asks for something else than Llama's arithmetic."""
    faults = []
    if config.get("model_type") not in MODEL_TYPES:
        faults.append(f"model_type {config.get('model_type')} (known are {', '.join(MODEL_TYPES)})")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        faults.append(f"hidden_act {config['hidden_act']}")
    faults += [f"{name} true" for name in ("attention_bias", "mlp_bias", "use_sliding_window") if config.get(name)]
    if config.get("model_type") == "mistral" and config.get("sliding_window") is not None:
        faults.append(f"sliding_window {config['sliding_window']}")
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        faults.append(f"rope_type {kind}")
    if float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        faults.append("partial_rotary_factor below 1")
    for layer, block in enumerate(config.get("block_configs") or []):
        parts = [block.get(part) or {} for part in ("attention", "ffn")]
        if any(part.get("no_op") or part.get("replace_with_linear") for part in parts):
            faults.append(f"block_configs[{layer}] without a whole layer")
    return faults


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Version 5's `rope_parameters`, version 4's `rope_scaling`."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {}


def _integer(config: Mapping[str, Any], name: str, address: Path, default: int | None = None) -> int:
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise ExportError(f"{address}: {name} = {value} is not a positive integer; give a Llama-shaped model")
    return value


def _check_tensors(shape: ModelShape, weights: NamedWeights) -> None:
    """ExportError for a tensor too few, too many, or of another shape than the configuration says."""
    names = tensor_names(shape)
    specs = {spec.name: spec for unit in build_units(shape) for spec in unit.parameters}
    tied = {"lm_head.weight"} if shape.tied_embeddings else set()
    surplus = sorted(name for name in weights.names - set(names.values()) - tied if not _BUFFER.fullmatch(name))
    missing = [name for name in names.values() if name not in weights.names]
    for found, verb in ((missing, "lacks"), (surplus, "has what a Llama-shaped model does not have:")):
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise ExportError(f"{weights.directory} {verb} {found[0]}{more}; give a whole Llama-shaped model")
    for ours, theirs in names.items():
        shape_found = weights.entry(theirs).shape
        if shape_found != specs[ours].shape:
            raise ExportError(
                f"{weights.directory}: {theirs} is {list(shape_found)} but config.json asks for "
                f"{list(specs[ours].shape)}; they are of different models"
            )


def _weight_files(directory: Path) -> list[str]:
    index = directory / INDEX_NAME
    if index.exists():
        files = read_json(index).get("weight_map")
        names = list(files.values()) if isinstance(files, dict) else []
        for name in names:
            if not isinstance(name, str) or not _FILE.fullmatch(name):
                raise ExportError(f"{index}: weight_map = {name!r} is not a file beside it; fetch the index again")
        return names
    if (directory / "model.safetensors").exists():
        return ["model.safetensors"]
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(directory.glob(pattern))]
    if pickles:
        raise ExportError(
            f"{directory} has its weights in {pickles[0]}, a pickle, which can run code and is never read here; "
            "save them as safetensors"
        )
    raise ExportError(
        f"{directory} has no model.safetensors and no {INDEX_NAME}; give a Hugging Face model's directory"
    )


def _open(path: Path) -> TensorFile:
    try:
        return TensorFile(path)
    except CheckpointError as error:
        raise ExportError(str(error).replace("use another step", "fetch it again")) from error
