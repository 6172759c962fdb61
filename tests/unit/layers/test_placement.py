import pytest
import torch
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup, build_mesh
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.units import build_unit
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.grid import Grid
from tests.ranks import run_ranks
from tests.tiny_model import SEQUENCE, tiny_plan

BATCH = 2


def kept_elements(plan: Plan, tensor: AxisGroup, kind: str, options: BlockOptions) -> list[int]:
    """Sizes of what one unit keeps for backward, parameters left out."""
    unit = next(unit for unit in plan.units if unit.kind == kind)
    module = build_unit(unit, plan, tensor, torch.float32, torch.device("cpu"), options)
    for parameter in module.parameters():
        torch.nn.init.ones_(parameter)
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        alive.append(x)
        if x.untyped_storage().data_ptr() not in own:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    share = SEQUENCE // tensor.size if plan.workload.sequence_parallel else SEQUENCE
    x = torch.ones(BATCH, share, plan.shape.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        module(x)
    return sorted(storages.values())


def kept_on_rank(rank: int, plan: Plan, kind: str, options: BlockOptions) -> list[int]:
    return kept_elements(plan, build_mesh(plan.grid).tensor, kind, options)


@pytest.mark.parametrize("kind", ["mixer", "mlp", "head"])
def test_no_whole_activation_is_kept_under_sequence_parallelism(kind: str) -> None:
    plan = tiny_plan(tensor=2, sequence_parallel=True)
    whole = BATCH * SEQUENCE * plan.shape.hidden_size
    width = next(unit.width for unit in plan.units if unit.kind == "mlp") or 0
    inner = {"mixer": [BATCH * SEQUENCE * 16] * 2, "mlp": [BATCH * SEQUENCE * width // 2] * 3, "head": []}[kind]
    for kept in run_ranks(2, kept_on_rank, plan, kind, BlockOptions()):
        large = [size for size in kept if size >= whole // 2]
        # The block's input and the norm's output, each a shard, besides what lies between its matrices.
        assert sorted(large) == sorted([whole // 2, whole // 2, *inner])


def test_full_recomputation_keeps_one_shard() -> None:
    plan = tiny_plan(tensor=2, sequence_parallel=True)
    for kind in ("mixer", "mlp"):
        for kept in run_ranks(2, kept_on_rank, plan, kind, BlockOptions(recompute="full")):
            assert kept == [BATCH * SEQUENCE * plan.shape.hidden_size // 2]


def gathers_in_backward(rank: int) -> int:
    from megatron_tlm.comm import collectives

    plan = tiny_plan(tensor=2, sequence_parallel=True)
    tensor = build_mesh(Grid(tensor=2)).tensor
    module = build_unit(plan.units[1], plan, tensor, torch.float32, torch.device("cpu"))
    for parameter in module.parameters():
        torch.nn.init.ones_(parameter)
    y = module(torch.ones(BATCH, SEQUENCE // 2, plan.shape.hidden_size, requires_grad=True))
    plain, calls = collectives._all_gather_single, []
    collectives._all_gather_single = lambda *args, **named: calls.append(1) or plain(*args, **named)
    y.sum().backward()
    return len(calls)


def test_the_three_projections_share_one_gathering_in_backward() -> None:
    # One for the output's gradient, one for the block's input.
    assert run_ranks(2, gathers_in_backward) == [2, 2]
