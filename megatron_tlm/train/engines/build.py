"""From a plan to an engine on this rank: the one place that chooses between the two there are.

zero.py       one stage, ZeRO 0-3: DeepSpeed's plain engine
pipeline.py   two stages or more, ZeRO 0-1: DeepSpeed's pipeline engine with our stages
"""

import torch

from megatron_tlm.comm.groups import Mesh, default_backend
from megatron_tlm.config.schema import Config
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from megatron_tlm.model.units import block_options
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.optimizer import check_stages
from megatron_tlm.train.engines.packing import pack_rules
from megatron_tlm.train.engines.quiet import prepare_deepspeed


def choose_backend(config: Config) -> str:
    """The communication library, and with it the device: nccl trains on GPUs, gloo on the CPU."""
    return config.parallel.distributed_backend or default_backend()


def training_device(config: Config) -> torch.device:
    """This process's GPU, chosen with the process group, or the CPU."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if choose_backend(config) == "nccl" else torch.device("cpu")
    )


def build_engine(config: Config, plan: Plan, mesh: Mesh, eod_id: int | None = None) -> Engine:
    """This rank's stage with its initial weights, inside the engine that the number of stages asks for.

    `eod_id` ends a document, for those options that care. The process group must stand: DeepSpeed builds groups of its
    own in it.
    """
    check_stages(plan)
    rules = pack_rules(config.data, eod_id, plan.shape.mixer)
    device = training_device(config)
    prepare_deepspeed(device)
    # Only now: DeepSpeed reads its environment while it is imported, and takes seconds.
    from megatron_tlm.train.engines.pipeline import PipelineEngine
    from megatron_tlm.train.engines.zero import ZeroEngine

    stage = Stage(
        plan,
        mesh.coordinate.pipe,
        tensor=mesh.tensor,
        dtype=torch.bfloat16 if config.training.bf16 else torch.float32,
        device=device,
        options=block_options(config),
    )
    init_stage(stage, plan, seed=config.training.seed, std=config.model.init_method_std)
    engine = ZeroEngine if plan.grid.pipe == 1 else PipelineEngine
    return engine(config, plan, mesh, stage, rules)
