"""The state of a run by global name and role, whatever ZeRO did to it: one list of views for saving and for loading.

    role                where it lives
    weight              ZeRO 0-2: the whole local tensor on every data rank; ZeRO 3: a flat range of it
    master              float32 copy that is stepped (ZeRO 1-3); stored only where weights are not float32 themselves
    exp_avg, exp_avg_sq beside what is stepped: the whole local tensor (ZeRO 0) or this data rank's flat range of it
    window_sum          the same, of levels that are not updated at every step

A flat range of a local tensor is a few boxes of the global one, so each rank writes what it steps, and reads only that:
no gathering, and a checkpoint of any layout fits any other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.save import Piece
from megatron_tlm.checkpoint.tiling import flat_range_boxes
from megatron_tlm.comm.groups import Mesh
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.shards import Extent, Shard, overlap
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.optimizer import STATE_ROLES, begin_state

WEIGHT, MASTER = "weight", "master"


@dataclass(frozen=True)
class Fragment:
    """Elements [start, start + n) of a local tensor, flattened: `values` [n] is the live memory.

    `shared`: every data rank holds the same. `stored`: worth a place in a checkpoint.
    """

    name: str
    role: str
    start: int
    values: Tensor
    shared: bool
    stored: bool = True


def state_fragments(engine: Engine, zero_stage: int, *, moments: bool) -> list[Fragment]:
    """All state of this rank in the order of its parameters; moments exist after the first step or `begin_state`."""
    of_stage = (_whole, _partitioned, _partitioned, _scattered)[zero_stage]
    return [
        fragment
        for name, parameter in engine.parameters.items()
        for fragment in of_stage(engine.deepspeed.optimizer, name, parameter)
        if moments or fragment.role not in STATE_ROLES
    ]


def _whole(optimizer: Any, name: str, parameter: nn.Parameter) -> Iterator[Fragment]:
    """ZeRO 0: torch's own optimizer steps the parameter itself."""
    yield Fragment(name, WEIGHT, 0, parameter.detach().view(-1), shared=True)
    for role in STATE_ROLES:
        if role in optimizer.state.get(parameter, {}):
            yield Fragment(name, role, 0, optimizer.state[parameter][role].view(-1), shared=True)


def _partitioned(optimizer: Any, name: str, parameter: nn.Parameter) -> Iterator[Fragment]:
    """ZeRO 1 and 2: each data rank steps one flat range per parameter group, which may hold none of this parameter.

    DeepSpeed's own `safe_get_full_optimizer_state` fails for all groups but the first until a checkpoint of its own
    was loaded (it links the moments of every group after the first group's step), so the addresses are used directly.
    """
    yield Fragment(name, WEIGHT, 0, parameter.detach().view(-1), shared=True)
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return
    local, inside = mapping.lp_fragment_address, mapping.hp_fragment_address
    (stepped,) = optimizer.param_groups[mapping.param_group_index]["params"]
    state = optimizer.state.get(stepped, {})
    tensors = {MASTER: stepped.detach()} | {role: state[role] for role in STATE_ROLES if role in state}
    for role, tensor in tensors.items():
        stored = role != MASTER or parameter.dtype != torch.float32
        values = tensor.narrow(0, inside.start, inside.numel)
        yield Fragment(name, role, local.start, values, shared=False, stored=stored)


def _scattered(optimizer: Any, name: str, parameter: Any) -> Iterator[Fragment]:
    """ZeRO 3: each data rank keeps an equal flat range of every parameter, the last ones padded."""
    scattered = parameter.ds_tensor
    start = scattered.numel() * optimizer._get_param_partition_rank(parameter)
    count = max(0, min(scattered.numel(), parameter.ds_numel - start))
    tensors = {WEIGHT: scattered.detach(), MASTER: optimizer.get_local_fp32_param(parameter).detach()}
    group, *_ = optimizer.grad_position[optimizer.get_param_id(parameter)]
    state = optimizer.optimizer.state.get(optimizer.fp32_partitioned_groups_flat[group], {})
    tensors |= {role: optimizer.get_local_fp32_param(parameter, role) for role in STATE_ROLES if role in state}
    for role, tensor in tensors.items():
        stored = role != MASTER or parameter.dtype != torch.float32
        yield Fragment(name, role, start, tensor.view(-1)[:count], shared=False, stored=stored)


def fragment_boxes(fragment: Fragment, held: Shard) -> Iterator[tuple[Extent, Tensor]]:
    """The fragment as (offset in the global tensor, view of the values); vocabulary padding is left out."""
    position = 0
    whole = (0,) * len(held.size)
    for offset, size in flat_range_boxes(held.local_shape, fragment.start, fragment.start + len(fragment.values)):
        values = fragment.values[position : position + prod(size)].view(size)
        position += prod(size)
        real = overlap(offset, size, whole, held.size)
        if real is None:
            continue
        start, extent = real
        inner = tuple(slice(a - b, a - b + n) for a, b, n in zip(start, offset, extent, strict=True))
        yield tuple(a + b for a, b in zip(held.offset, start, strict=True)), values[inner]


def state_pieces(engine: Engine, plan: Plan, mesh: Mesh, zero_stage: int, *, optimizer: bool) -> list[Piece]:
    """What this rank writes of a checkpoint; over all ranks, each tensor once. `optimizer`: masters and moments too."""
    own = {spec.name for unit in plan.stage_units(mesh.coordinate.pipe) for spec in unit.parameters}
    if optimizer and not any(engine.deepspeed.basic_optimizer.state.values()):
        # No update was made yet, every step so far was left out.
        begin_state(engine.deepspeed.basic_optimizer, _stepped(engine, zero_stage), 0)
    roles = {WEIGHT, MASTER, *STATE_ROLES} if optimizer else {WEIGHT}
    held = [
        fragment
        for fragment in state_fragments(engine, zero_stage, moments=optimizer)
        if fragment.stored and fragment.role in roles and fragment.name in own
    ]
    shared = {(item.name, item.role): item.values.nbytes for item in held if item.shared}
    writer = share_out(shared, mesh.data.size)
    pieces = []
    for fragment in held:
        spec = plan.parameter_specs[fragment.name]
        replicated = spec.split_at(plan.grid.tensor) is None
        elsewhere = fragment.shared and writer[fragment.name, fragment.role] != mesh.data.rank
        if elsewhere or (replicated and mesh.tensor.rank > 0 and not spec.padded):
            continue
        for offset, values in fragment_boxes(fragment, plan.shard(spec, mesh.tensor.rank)):
            size, dtype = tuple(values.shape), values.dtype
            pieces.append(
                Piece(spec.name, fragment.role, spec.shape, offset, size, dtype, lambda values=values: values)  # type: ignore[misc]
            )
    return pieces


def share_out(sizes: Mapping[tuple[str, str], int], ranks: int) -> dict[tuple[str, str], int]:
    """A writer for each tensor that all `ranks` hold: the largest first, always to who has least to write so far."""
    loads = [0] * ranks
    writer = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        writer[key] = loads.index(min(loads))
        loads[writer[key]] += sizes[key]
    return writer


def load_state(engine: Engine, plan: Plan, mesh: Mesh, zero_stage: int, reader: Reader, *, optimizer: bool) -> None:
    """Fills this rank's state from a checkpoint of any layout; without `optimizer`, weights alone.

    Weights and masters both come from the saved masters where there are any: rounding those gives the saved weights.
    """
    wrapped = engine.deepspeed.optimizer
    if optimizer:
        steps = reader.manifest.facts.optimizer_steps
        begin_state(engine.deepspeed.basic_optimizer, _stepped(engine, zero_stage), steps)
    for fragment in state_fragments(engine, zero_stage, moments=optimizer):
        spec = plan.parameter_specs[fragment.name]
        role = fragment.role
        if role in (WEIGHT, MASTER):
            role = MASTER if MASTER in reader.roles(spec.name) else WEIGHT
        for offset, values in fragment_boxes(fragment, plan.shard(spec, mesh.tensor.rank)):
            values.copy_(reader.read(spec.name, role, offset, tuple(values.shape)))
    if zero_stage == 3 and wrapped.persistent_parameters:
        # Small parameters stay gathered between steps: gather them again from what was just loaded.
        wrapped.persistent_parameters[0].partition(wrapped.persistent_parameters)
        wrapped.persistent_parameters[0].all_gather(wrapped.persistent_parameters)


def _stepped(engine: Engine, zero_stage: int) -> list[tuple[Tensor, int]]:
    """The tensors that torch's optimizer steps, and the period of each."""
    optimizer = engine.deepspeed.optimizer
    groups = optimizer.param_groups
    if zero_stage == 3:
        flat = optimizer.fp32_partitioned_groups_flat
        return [
            (tensor, groups[optimizer.sub_group_to_group_id[index]].get("period", 1))
            for index, tensor in enumerate(flat)
        ]
    return [(tensor, group.get("period", 1)) for group in groups for tensor in group["params"]]
