"""How a model is laid over ranks: degrees, stages, memory, and the device that the plan is made for."""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.config.field import at_least, option
from megatron_tlm.errors import ConfigError

MAX_TIMEOUT_MINUTES = 30 * 24 * 60
Recompute = Literal["full", "selective"]


@dataclass(frozen=True)
class ParallelConfig:
    """How the work is laid over ranks; the data degree is world size / (tensor x pipeline)."""

    tensor_model_parallel_size: int = option(1, "ranks that share each layer")
    pipeline_model_parallel_size: int = option(1, "stages the layers are cut into")
    sequence_parallel: bool = option(False, "split norms and residuals over the tensor ranks along the sequence")
    zero_stage: int = option(1, "DeepSpeed ZeRO stage: 0-3 without pipeline, 0-1 with one")
    recompute_granularity: Recompute | None = option(
        None, "recompute in backward: full (each unit) or selective (attention core)"
    )
    decoder_first_pipeline_num_layers: int | None = option(
        None, "whole layers on the first stage, the stages not named sharing the rest evenly (default: the best cut)"
    )
    decoder_last_pipeline_num_layers: int | None = option(None, "whole layers on the last stage, likewise")
    pipeline_model_parallel_layout: str | None = option(
        None, "stages by hand in Megatron's letters, E embedding, t layer, L loss: Et*3|(tt|)*2tL", metavar="LAYOUT"
    )
    pipeline_cuts: tuple[str, ...] = option(
        (), "the unit that each stage but the first begins with, such as layers.3.mlp", metavar="UNIT"
    )
    pipeline_objective: Literal["step-time", "slowest-stage"] = option(
        "step-time", "what the best cut has the least of: simulated step time, or work of its slowest stage"
    )
    hardware: str | None = option(
        None, "device to predict seconds for, and to cut by: a100, h100, h200, b200, cpu (default: cut by work alone)"
    )
    hardware_profile: str | None = option(
        None, "times measured by `plan --profile`, to cut by instead of a description", metavar="FILE"
    )
    gpu_memory: str | None = option(
        None, "memory of a rank that the cut has to fit into, such as 80GiB (default: no bound)", metavar="SIZE"
    )
    deepspeed_config: str | None = option(
        None, "a DeepSpeed JSON merged into ours; a contradiction is an error", metavar="FILE"
    )
    distributed_backend: Literal["nccl", "gloo"] | None = option(
        None, "communication library (default: nccl with GPUs, else gloo)"
    )
    distributed_timeout_minutes: float = option(10.0, "a collective that takes longer ends the run")

    def __post_init__(self) -> None:
        at_least(
            "parallel", self, {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "zero_stage": 0}
        )
        if self.zero_stage > 3:
            raise ConfigError(f"parallel.zero_stage = {self.zero_stage} is above 3; DeepSpeed has stages 0, 1, 2, 3")
        if self.distributed_timeout_minutes > MAX_TIMEOUT_MINUTES:
            raise ConfigError(
                f"parallel.distributed_timeout_minutes = {self.distributed_timeout_minutes:g} is above "
                f"{MAX_TIMEOUT_MINUTES}, 30 days; give fewer"
            )
        if self.distributed_timeout_minutes <= 0:
            raise ConfigError(
                f"parallel.distributed_timeout_minutes = {self.distributed_timeout_minutes:g} is not positive; "
                "give minutes"
            )
