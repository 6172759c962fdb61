"""A trained model on one process, from a checkpoint of any layout, with the tokenizer that was saved beside it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.config.dump import from_mapping
from megatron_tlm.config.schema import Config, ParallelConfig
from megatron_tlm.data.tokenizers import Tokenizer, load_tokenizer
from megatron_tlm.errors import CheckpointError, ConfigError
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan, build_plan


@dataclass(frozen=True)
class Restored:
    """A whole model in evaluation mode; `tokenizer` is None where the run had none (made-up data)."""

    stage: Stage
    plan: Plan
    tokenizer: Tokenizer | None
    config: Config
    step: int
    path: Path


def load_model(
    load_dir: str | Path,
    step: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    *,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Restored:
    """The model that `load_dir` holds (its newest complete step by default), as one stage on one process.

    Device: by default this process's GPU where there is one. Dtype: by default what it was trained in on a GPU,
    float32 on a CPU. `tell` hears which checkpoints were passed over, and why. CheckpointError: nothing to load.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with Reader(find(Path(load_dir), step, tell=tell)) as reader:
        facts = reader.manifest.facts
        config = _saved_config(reader)
        plan = build_plan(config, facts.shape.vocab_size, shape=facts.shape)
        stage = Stage(plan, dtype=dtype or _working_dtype(config, device), device=device)
        _fill(stage, plan, reader)
        return Restored(stage.eval(), plan, _saved_tokenizer(config, reader), config, facts.step, reader.path)


def _saved_config(reader: Reader) -> Config:
    """The run's configuration with its layout replaced by one process."""
    try:
        config = from_mapping(dict(reader.manifest.facts.config), "manifest.json")
    except ConfigError as error:
        raise CheckpointError(
            f"{reader.path}: the configuration it was saved with is not understood ({error}); "
            "use the version that saved it"
        ) from error
    return replace(config, parallel=ParallelConfig())


def _working_dtype(config: Config, device: torch.device) -> torch.dtype:
    """CPUs compute bfloat16 slowly; its values are float32 values, so there float32 is the same model."""
    return torch.bfloat16 if config.training.bf16 and device.type == "cuda" else torch.float32


def _fill(stage: Stage, plan: Plan, reader: Reader) -> None:
    """Copy each weight into the leading corner of its parameter; what remains is padded vocabulary, which is zero."""
    with torch.no_grad():
        for name, parameter in stage.global_parameters().items():
            share = plan.shard(plan.parameter_specs[name], 0)
            corner = parameter.zero_()[tuple(slice(extent) for extent in share.size)]
            corner.copy_(reader.read(name, "weight", share.offset, share.size))


def _saved_tokenizer(config: Config, reader: Reader) -> Tokenizer | None:
    kind, file = config.data.tokenizer_type, reader.tokenizer
    return load_tokenizer(kind, file) if kind is not None or file is not None else None
