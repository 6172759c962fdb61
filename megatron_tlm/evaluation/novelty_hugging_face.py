"""Layer-wise novelty of a Hugging Face model: any decoder whose layers hold their MLP as `mlp` (GPT-2, Llama, ours)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.errors import ConfigError, DataError
from megatron_tlm.evaluation.novelty import Novelty
from megatron_tlm.model.novelty import LayerNovelty, cosines


def load_hugging_face(folder: str, *, trust_remote_code: bool = False) -> Any:
    """The model of a local directory in float32, in evaluation mode; its code runs only where it is trusted."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ConfigError(
            f"--hugging-face = {folder} needs transformers; pip install 'megatron_tlm[export]'"
        ) from error
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"--hugging-face = {folder} holds no config.json; give the directory of a Hugging Face model")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        raise _not_loading(folder, "model", error, trust_remote_code) from error
    model.eval()
    return model


def load_tokenizer(folder: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a local directory; its code runs only where it is trusted."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise _not_loading(folder, "tokenizer", error, trust_remote_code) from error


def _not_loading(folder: str, what: str, error: Exception, trusted: bool) -> ConfigError:
    """What the library raises over a directory that it does not understand may be anything."""
    cause = " ".join(str(error).split()) or type(error).__name__
    hint = "give another directory" if trusted else "where it brings code that you trust, give --trust-remote-code"
    return ConfigError(f"--hugging-face = {folder} has a {what} that does not load ({cause[:300]}); {hint}")


def hugging_face_novelty(model: nn.Module, batches: Sequence[Tensor]) -> Novelty:
    """Of token ids [B, S]. ConfigError for a model without such layers, DataError for ids it does not know."""
    layers = decoder_layers(model)
    sums = torch.zeros(len(layers), 2, dtype=torch.float64)
    held: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, out: held.__setitem__(name, _hidden(out))

    def enter(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        held["h"] = given[0] if given else named["hidden_states"]

    def between(module: nn.Module, given: tuple[Any, ...]) -> None:
        held["z"] = given[0]

    def leave(index: int) -> Any:
        def close(module: nn.Module, given: Any, out: Any) -> None:
            after = _hidden(out)
            z = held["z"] if "z" in held else after - held["mlp"]
            block_Bs, mlp_Bs = cosines(held["h"], z, after)
            sums[index] += torch.stack([block_Bs.double().sum(), mlp_Bs.double().sum()])

        return close

    hooks = []
    for index, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        if isinstance(layer.mlp, nn.ModuleList):  # each adds itself to the stream
            hooks.append(layer.mlp[0].register_forward_pre_hook(between))
        else:
            hooks.append(layer.mlp.register_forward_hook(keep("mlp")))  # type: ignore[union-attr]
        hooks.append(layer.register_forward_hook(leave(index)))
    try:
        with torch.inference_mode():
            for tokens_BS in batches:
                _check_ids(model, tokens_BS)
                model(tokens_BS)
    finally:
        for hook in hooks:
            hook.remove()
    num_tokens = sum(tokens_BS.numel() for tokens_BS in batches)
    return Novelty(tuple(LayerNovelty(*pair) for pair in (sums / num_tokens).tolist()), num_tokens)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules that all have an `mlp`; ConfigError where there is none.

    A chain of MLPs is known of our own exports alone: that of another model may be experts, or stand behind a norm.
    """
    ours = getattr(getattr(model, "config", None), "model_type", "") == "megatron_tlm"
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    found = [list(layers) for layers in lists if len(layers) and all(_has_mlp(layer, ours) for layer in layers)]
    if not found:
        raise ConfigError(
            f"model = {type(model).__name__} has no list of layers that hold an `mlp` each; give one shaped like "
            "GPT-2 or Llama"
        )
    return max(found, key=len)


def _has_mlp(layer: nn.Module, ours: bool) -> bool:
    mlp = getattr(layer, "mlp", None)
    return isinstance(mlp, nn.Module) and (ours or not isinstance(mlp, nn.ModuleList))


def _hidden(out: Any) -> Tensor:
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden


def _check_ids(model: nn.Module, tokens_BS: Tensor) -> None:
    known, largest = model.config.vocab_size, int(tokens_BS.max())  # type: ignore[union-attr]
    if largest >= known:  # type: ignore[operator]
        raise DataError(
            f"tokens = ids up to {largest} leave the model's vocabulary of {known}; give data of its own tokenizer"
        )
