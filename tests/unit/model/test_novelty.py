"""Layer-wise novelty: by hand, on any layout, with the pipeline cut inside a layer and inside its MLP."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from megatron_tlm.comm.groups import Mesh, build_mesh, single_mesh
from megatron_tlm.comm.stages import receive_from_previous, send_to_next
from megatron_tlm.model.novelty import LayerNovelty, NoveltyProbe, cosines, pearson
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from tests.ranks import run_ranks
from tests.tiny_model import random_tokens, random_weights, set_weights, tiny_plan

BATCHES = (random_tokens(), random_tokens(batch=3, seed=2))


def probed(plan: Plan, mesh: Mesh) -> tuple[LayerNovelty, ...]:
    """Of a model with random weights, in float64, stage by stage."""
    stage = Stage(plan, mesh.coordinate.pipe, tensor=mesh.tensor, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, mesh.tensor.rank)
    with torch.no_grad(), NoveltyProbe(stage, mesh) as probe:
        for x in BATCHES:
            if mesh.pipe.rank > 0:
                share = x.shape[1] // (mesh.tensor.size if plan.workload.sequence_parallel else 1)
                size = (x.shape[0], share, plan.shape.hidden_size)
                x = receive_from_previous(size, torch.float64, torch.device("cpu"), mesh.pipe)
            x = stage(x)
            if mesh.pipe.rank < mesh.pipe.size - 1:
                send_to_next(x, mesh.pipe)
    return probe.result()


def on_rank(rank: int, plan: Plan) -> tuple[LayerNovelty, ...]:
    return probed(plan, build_mesh(plan.grid))


def cut(plan: Plan, *names: str) -> Plan:
    """The same plan with stages that begin with these units."""
    starts = [0, *(index for index, unit in enumerate(plan.units) if unit.name in names), len(plan.units)]
    return plan.with_stages([range(a, b) for a, b in pairwise(starts)])


def test_cosines_by_hand() -> None:
    h = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    z = torch.tensor([[[1.0, 1.0], [0.0, 2.0]]])
    out = torch.tensor([[[2.0, 1.0], [0.0, 2.0]]])
    block, mlp = cosines(h, z, out)
    torch.testing.assert_close(block, torch.tensor([[math.sqrt(0.5), 0.0]]))  # adds (1, 1) to (1, 0); adds nothing
    torch.testing.assert_close(mlp, torch.tensor([[1.0, 0.0]]))  # the MLP adds (1, 0)


def test_the_probe_sees_what_the_blocks_did_and_leaves_no_hook() -> None:
    plan = tiny_plan(num_layers=3)
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    block, mlp = torch.zeros(3), torch.zeros(3)
    num_tokens = sum(batch.numel() for batch in BATCHES)
    with torch.no_grad():
        for batch in BATCHES:
            h = stage.blocks[0](batch)
            for layer in range(3):
                z = stage.blocks[1 + 2 * layer](h)
                out = stage.blocks[2 + 2 * layer](z)
                block[layer] += torch.cosine_similarity(out - h, h, dim=-1).sum() / num_tokens
                mlp[layer] += torch.cosine_similarity(out - z, h, dim=-1).sum() / num_tokens
                h = out
    found = probed(plan, single_mesh())
    torch.testing.assert_close(torch.tensor([layer.rho_block for layer in found]), block)
    torch.testing.assert_close(torch.tensor([layer.rho_mlp for layer in found]), mlp)
    with NoveltyProbe(stage, single_mesh()):
        assert any(module._forward_hooks for module in stage.blocks)
    assert not any(module._forward_hooks for module in stage.blocks)


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ({"tensor": 2}, ()),
        ({"tensor": 2, "sequence_parallel": True}, ()),
        ({"pipe": 2}, ("layers.1.mixer",)),
        ({"pipe": 2}, ("layers.1.mlp",)),
        ({"pipe": 3}, ("layers.0.mlp", "layers.1.mlp")),
        ({"pipe": 3, "cms_levels": 3, "cms_periods": (1, 2, 4)}, ("layers.0.mlp.1", "layers.0.mlp.2")),
        ({"pipe": 2, "tensor": 2, "sequence_parallel": True}, ("layers.1.mlp",)),
    ],
)
def test_any_layout_measures_the_same(sizes: dict[str, Any], cuts: tuple[str, ...]) -> None:
    alone = {name: value for name, value in sizes.items() if name.startswith("cms")}
    expected = probed(tiny_plan(**alone), single_mesh())
    plan = tiny_plan(**sizes)
    plan = cut(plan, *cuts) if cuts else plan
    for found in run_ranks(plan.grid.size, on_rank, plan):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_pearson() -> None:
    assert pearson([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert pearson([3.0, 1.0, 2.0, 0.0]) == pytest.approx(np.corrcoef(range(4), [3, 1, 2, 0])[0, 1])
    assert pearson([0.5]) is None
    assert pearson([0.5, 0.5]) is None
