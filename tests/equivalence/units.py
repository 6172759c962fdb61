"""Every unit of a plan run by itself, on one process or on tensor ranks: outputs, input and weight gradients."""

import torch
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup, build_mesh
from megatron_tlm.model.units import build_unit, global_name
from megatron_tlm.plan.build import Plan
from tests.ranks import run_ranks
from tests.tiny_model import SEQUENCE, VOCABULARY, assemble, assert_same, random_tokens, random_weights, set_weights

Result = dict[str, dict[str, Tensor]]
BATCH, CPU = 2, torch.device("cpu")


def share_of_sequence(x: Tensor, tensor: AxisGroup) -> Tensor:
    share = x.shape[1] // tensor.size
    return x[:, tensor.rank * share : (tensor.rank + 1) * share]


def run_units(plan: Plan, tensor: AxisGroup) -> dict[str, Result]:
    """Every unit alone: random input, random gradient of its output; what comes out, by unit name."""
    generator = torch.Generator().manual_seed(7)
    sharded = plan.workload.sequence_parallel and tensor.size > 1
    whole, results = random_weights(plan), {}
    for unit in plan.units:
        module = build_unit(unit, plan, tensor, torch.float64, CPU)
        named = {global_name(unit, name, plan.shape): parameter for name, parameter in module.named_parameters()}
        set_weights(named, whole, plan, tensor.rank)

        h = torch.randn(BATCH, SEQUENCE, plan.shape.hidden_size, generator=generator, dtype=torch.float64)
        grad_h = torch.randn(h.shape, generator=generator, dtype=torch.float64)
        grad_logits = torch.randn(BATCH, SEQUENCE, 64, generator=generator, dtype=torch.float64)
        grad_logits[..., VOCABULARY:] = 0.0  # as the loss gives it
        x = random_tokens() if unit.kind == "embedding" else h
        if sharded and unit.kind != "embedding":
            x = share_of_sequence(x, tensor)
        if unit.kind != "embedding":
            x = x.clone().requires_grad_()
        y = module(x)
        if unit.kind == "head":
            grad = grad_logits.chunk(tensor.size, dim=-1)[tensor.rank]
        else:
            grad = share_of_sequence(grad_h, tensor) if sharded else grad_h
        y.backward(grad)
        grads = {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None}
        assert set(grads) == set(named)
        flow = {"output": y.detach()} | ({"input_gradient": x.grad} if x.grad is not None else {})
        results[unit.name] = {"flow": flow, "gradients": grads}
    return results


def units_on_rank(rank: int, plan: Plan) -> dict[str, Result]:
    return run_units(plan, build_mesh(plan.grid).tensor)


def together(name: str, key: str, pieces: list[Tensor], sequence_parallel: bool) -> Tensor:
    if name == "head" and key == "output":
        return torch.cat(pieces, dim=-1)
    if sequence_parallel:
        return torch.cat(pieces, dim=1)
    for piece in pieces[1:]:
        assert torch.equal(piece, pieces[0]), f"{name} {key} differs between tensor ranks"
    return pieces[0]


def assert_units_equal(single: Plan, plan: Plan, tolerance: float = 1e-12) -> None:
    """The units of `plan` on its tensor ranks are those of `single` on one process."""
    alone = run_units(single, AxisGroup.single())
    assert plan.padded_vocab_size == single.padded_vocab_size == 64
    ranks = run_ranks(plan.grid.tensor, units_on_rank, plan)
    for name, expected in alone.items():
        gradients = assemble([rank[name]["gradients"] for rank in ranks], plan)
        assert_same(gradients, assemble([expected["gradients"]], single), tolerance)
        flow = {
            key: together(name, key, [rank[name]["flow"][key] for rank in ranks], plan.workload.sequence_parallel)
            for key in expected["flow"]
        }
        assert_same(flow, expected["flow"], tolerance)
