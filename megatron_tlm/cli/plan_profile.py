"""`plan --profile FILE`: units and messages measured on the device at hand, by one process or under torchrun."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from megatron_tlm.cli.files import writing
from megatron_tlm.cli.options import vocab_size
from megatron_tlm.cli.stage_table import duration
from megatron_tlm.config.launch import read_launch
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.plan.hardware import Profile
from megatron_tlm.report.scale import size_text

TIMEOUT = timedelta(minutes=10)
UNMEASURED = (
    "messages between stages were not measured: that takes two GPUs, and one process has one; "
    "torchrun --nproc-per-node 2 -m megatron_tlm plan ... --profile FILE measures them too"
)


def measure(config: Config, data: int, target: Path) -> int:
    """Measure and store; the next plan or run takes the file with --hardware-profile."""
    from megatron_tlm.comm.groups import init_distributed, shutdown
    from megatron_tlm.train.engines.build import choose_backend

    plan = build_plan(config, vocab_size(config), data=data)
    rank, world_size, _ = read_launch()
    if world_size == 1:
        tell(_measured_alone(config, plan), target)
        return 0
    init_distributed(choose_backend(config), TIMEOUT)
    profile = measured_together(config, plan, world_size)
    if rank == 0:
        tell(profile, target)
    shutdown()
    return 0


def _measured_alone(config: Config, plan: Plan) -> Profile:
    import torch

    from megatron_tlm.evaluation.measure_messages import measure_messages_alone
    from megatron_tlm.evaluation.measure_units import measure_units

    if torch.cuda.is_available():
        profile = measure_units(config, plan, torch.device("cuda"))
        return replace(profile, notes=f"{profile.notes}; {UNMEASURED}")
    # First: a process that has computed leaves less of the machine to the two that talk.
    cost = measure_messages_alone(plan.setting.message_bytes)
    profile = measure_units(config, plan, torch.device("cpu"))
    notes = f"{profile.notes}; messages between two gloo processes"
    return replace(profile, message_latency=cost.latency, message_bandwidth=cost.bandwidth, notes=notes)


def measured_together(config: Config, plan: Plan, world_size: int) -> Profile:
    """By all ranks of a launch at once, as they would train; collective."""
    from megatron_tlm.evaluation.measure_messages import measure_messages
    from megatron_tlm.evaluation.measure_units import measure_units
    from megatron_tlm.train.engines.build import choose_backend, training_device

    # Ranks of neighbouring stages are as far apart as a stage has ranks.
    peer = min(max(plan.grid.data * plan.grid.tensor, 1), world_size - 1)
    device = training_device(config)
    cost = measure_messages(plan.setting.message_bytes, peer, device)
    profile = measure_units(config, plan, device)
    notes = f"{profile.notes}; messages by {choose_backend(config)} between ranks 0 and {peer}"
    return replace(profile, message_latency=cost.latency, message_bandwidth=cost.bandwidth, notes=notes)


def tell(profile: Profile, target: Path) -> None:
    """Stores the profile, shows what is in it, and says how to use it."""
    with writing("--profile", target):
        profile.save(target)
    for unit in profile.units:
        width = f" of {unit.width}" if unit.width else ""
        print(f"{unit.kind + width:16} forward {duration(unit.forward):>8}  backward {duration(unit.backward):>8}")
    if profile.message_bandwidth:
        print(f"message          {duration(profile.message_latency)} + {size_text(profile.message_bandwidth)}/s")
    else:
        print(f"message          {UNMEASURED}")
    print(f"{target}: {profile.device}; use it with --hardware-profile {target}")
