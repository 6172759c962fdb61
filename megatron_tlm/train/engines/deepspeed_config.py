"""DeepSpeed's JSON, made from our configuration; a user's own JSON may add to it, never contradict it.

Imports neither torch nor DeepSpeed: what DeepSpeed cannot do is refused here, before a process group exists.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError

Settings = dict[str, Any]


class Bound(NamedTuple):
    """A setting that follows from a field of ours, and that field's address."""

    value: Any
    address: str


# Elements per communication bucket: DeepSpeed's 5e8 would be 2 GB of float32 each, held all the time.
BUCKET_ELEMENTS = 50_000_000

# Blocks that would take over what this package does itself, or that our checkpoints cannot see into.
FOREIGN = {
    "optimizer": "the optimizer is built from --lr, --weight-decay, --adam-beta1 and the like",
    "scheduler": "the learning rate is built from --lr, --lr-decay-style and the like",
    "fp16": "use --bf16",
    "amp": "use --bf16",
    "torch_autocast": "use --bf16",
    "tensor_parallel": "use --tensor-model-parallel-size",
    "sequence_parallel_size": "use --sequence-parallel",
    "activation_checkpointing": "use --recompute-granularity",
    "zero_optimization.offload_optimizer": "checkpoints read the optimizer's state where it is computed",
    "zero_optimization.offload_param": "checkpoints read the weights where they are used",
    "zero_optimization.zenflow": "checkpoints read the optimizer's state where it is computed",
    "checkpoint": "use --save and --load",
    "data_efficiency": "use --data-path",
    "hybrid_engine": "use the generate command",
}

# Integers, and the least that each may be.
COUNTS = {
    "steps_per_print": 1,
    "zero_optimization.reduce_bucket_size": 0,
    "zero_optimization.allgather_bucket_size": 0,
    "zero_optimization.sub_group_size": 0,
    "zero_optimization.stage3_prefetch_bucket_size": 0,
    "zero_optimization.stage3_param_persistence_threshold": 0,
    "zero_optimization.stage3_model_persistence_threshold": 0,
    "zero_optimization.stage3_max_live_parameters": 0,
    "zero_optimization.stage3_max_reuse_distance": 0,
}


def check_deepspeed(config: Config) -> None:
    """ConfigError for what DeepSpeed cannot combine, and for a JSON that is unreadable or contradicts the rest."""
    parallel = config.parallel
    if parallel.zero_stage > 1 and parallel.pipeline_model_parallel_size > 1:
        raise ConfigError(
            f"parallel.zero_stage = {parallel.zero_stage} cannot go with pipeline_model_parallel_size = "
            f"{parallel.pipeline_model_parallel_size}, DeepSpeed's pipeline knows the stages 0 and 1; "
            "use --zero-stage 1 or --pipeline-model-parallel-size 1"
        )
    if parallel.zero_stage == 0 and config.training.bf16:
        raise ConfigError(
            "parallel.zero_stage = 0 cannot go with bf16 = True, DeepSpeed accumulates gradients in float32 from stage "
            "1 on; use --zero-stage 1, which is the same on one data rank, or leave out --bf16"
        )
    if parallel.deepspeed_config is not None:
        merge(_bound(config, None, None), _defaults(config), *_read(parallel.deepspeed_config))


def deepspeed_config(config: Config, *, micro_batches: int, data: int) -> Settings:
    """What `deepspeed.initialize` is given, for `micro_batches` per step on each of `data` data ranks."""
    user, path = _read(config.parallel.deepspeed_config) if config.parallel.deepspeed_config else ({}, "")
    settings = merge(_bound(config, micro_batches, data), _defaults(config), user, path)
    if config.parallel.zero_stage == 0:
        # Without ZeRO, DeepSpeed reports no norm, and on later stages of a pipeline clips by a wrong one: we clip.
        settings["gradient_clipping"] = 0.0
    return settings


def _bound(config: Config, micro_batches: int | None, data: int | None) -> dict[str, Bound]:
    """Settings by dotted name that our fields decide; batches only once the number of ranks is known."""
    training, parallel = config.training, config.parallel
    bound = {
        "train_micro_batch_size_per_gpu": Bound(training.micro_batch_size, "training.micro_batch_size"),
        "zero_optimization.stage": Bound(parallel.zero_stage, "parallel.zero_stage"),
        "gradient_clipping": Bound(config.optimizer.clip_grad, "optimizer.clip_grad"),
        "bf16.enabled": Bound(training.bf16, "training.bf16"),
        "data_types.grad_accum_dtype": Bound("fp32", "training.bf16 (gradients accumulate in float32)"),
        # A mean of gradients rounded to bf16 on the wire would undo the float32 accumulation.
        "communication_data_type": Bound("fp32", "training.bf16 (gradients travel in float32)"),
        # Partitioned activations assume equal tensors on all tensor ranks: under sequence parallelism they are not.
        "pipeline.pipe_partitioned": Bound(False, "parallel.sequence_parallel (it needs whole activations)"),
        "pipeline.grad_partitioned": Bound(False, "parallel.sequence_parallel (it needs whole activations)"),
    }
    if micro_batches is not None and data is not None:
        batch = training.micro_batch_size * micro_batches * data
        bound["train_batch_size"] = Bound(batch, "training.global_batch_size")
        bound["gradient_accumulation_steps"] = Bound(
            micro_batches, "training.global_batch_size over micro_batch_size and data ranks"
        )
    elif training.global_batch_size is not None:
        bound["train_batch_size"] = Bound(training.global_batch_size, "training.global_batch_size")
    return bound


def _defaults(config: Config) -> Settings:
    """Settings by dotted name that a user's JSON may change."""
    if config.parallel.zero_stage == 0:
        return {}
    buckets = {
        "zero_optimization.reduce_bucket_size": BUCKET_ELEMENTS,
        "zero_optimization.allgather_bucket_size": BUCKET_ELEMENTS,
    }
    return buckets | {"zero_allow_untested_optimizer": True}


def merge(bound: Mapping[str, Bound], defaults: Mapping[str, Any], user: Settings, path: str) -> Settings:
    """One nested dict; ConfigError naming both values and both places where the user's JSON says otherwise."""
    flat: Settings = {**defaults}
    blocks = {key.split(".")[0] for key in (*bound, *defaults) if "." in key}
    for key, value in _flatten(user):
        if key in blocks:
            if value == {}:
                continue  # says nothing
            raise ConfigError(f"{path}: {key} = {json.dumps(value)} is not an object; write {{...}} or leave it out")
        _check_number(key, value, path)
        key = key.replace("bfloat16.", "bf16.", 1) if key.startswith("bfloat16.") else key
        _refuse_foreign(key, value, path)
        ours = bound.get(key)
        if ours is not None and value not in (ours.value, "auto") and not _same_dtype(value, ours.value):
            raise ConfigError(
                f"{path}: {key} = {json.dumps(value)} contradicts {ours.address} = {json.dumps(ours.value)}; "
                "change one of them or leave it out of the JSON"
            )
        if value != "auto":
            flat[key] = value
    return _nest(flat | {key: item.value for key, item in bound.items()})


def _check_number(key: str, value: Any, path: str) -> None:
    """ConfigError for what DeepSpeed would refuse once the ranks have met; 5e8 is an integer to it."""
    if key not in COUNTS or value == "auto":
        return
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or number < COUNTS[key] or number != number // 1 or number == float("inf"):
        raise ConfigError(
            f"{path}: {key} = {json.dumps(value)} is not an integer of {COUNTS[key]} or more; give one, or leave it out"
        )


def _refuse_foreign(key: str, value: Any, path: str) -> None:
    for name, instead in FOREIGN.items():
        inside = key == name or key.startswith(name + ".")
        if inside and not (key == f"{name}.enabled" and value is False):
            raise ConfigError(f"{path}: {key} = {json.dumps(value)} is not ours to hand over; {instead}")


def _same_dtype(value: Any, ours: Any) -> bool:
    return ours == "fp32" and value in ("fp32", "float32", "float", "torch.float32")


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nest(flat: Mapping[str, Any]) -> Settings:
    nested: Settings = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return nested


def _read(path: str) -> tuple[Settings, str]:
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"parallel.deepspeed_config = {path} cannot be read ({error.strerror}); give the path of a JSON file"
        ) from error
    except ValueError as error:
        raise ConfigError(f"parallel.deepspeed_config = {path} is not JSON ({error}); mend it") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"parallel.deepspeed_config = {path} holds a {type(settings).__name__}; DeepSpeed wants an object"
        )
    return settings, path
