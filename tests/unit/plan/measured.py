"""What torch really does, for tests of the planner's predictions: bytes saved by autograd, bytes at the peak."""

from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.layers.loss import vocab_parallel_cross_entropy
from megatron_tlm.model.units import block_options, build_unit
from megatron_tlm.plan.build import Plan

torch.set_num_threads(1)  # as the forked ranks of other tests need it, and so that one buffer per kernel is enough


class UnitRun:
    """One unit of a plan on one CPU process, its gradients there already, with an input to run it on."""

    def __init__(self, plan: Plan, index: int, config) -> None:
        self.plan, self.unit = plan, plan.units[index]
        dtype = torch.bfloat16 if plan.workload.element_bytes == 2 else torch.float32
        self.module = build_unit(
            self.unit, plan, AxisGroup.single(), dtype, torch.device("cpu"), block_options(config)
        ).train()
        for parameter in self.module.parameters():
            nn.init.normal_(parameter, std=0.02)
            parameter.grad = torch.zeros_like(parameter)
        shape = (plan.workload.micro_batch_size, plan.seq_length)
        self.tokens = torch.randint(0, plan.shape.vocab_size, shape)
        self.h = torch.randn(*shape, plan.shape.hidden_size, dtype=dtype, requires_grad=True)
        self.gradient = torch.randn_like(self.h)

    def forward(self) -> torch.Tensor:
        if self.unit.kind == "embedding":
            return self.module(self.tokens)
        out = self.module(self.h)
        if self.unit.kind == "head":
            return vocab_parallel_cross_entropy(out, self.tokens, AxisGroup.single(), self.plan.shape.vocab_size).mean()
        return out

    def forward_backward(self) -> None:
        out = self.forward()
        out.backward(None if out.dim() == 0 else self.gradient)
        self.h.grad = None

    def tables(self) -> int:
        """Bytes of the rotary table, which is the same for every micro-batch."""
        found = [module._table for module in self.module.modules() if getattr(module, "_table", None) is not None]
        return sum(part.untyped_storage().nbytes() for table in found for part in table)


def saved_bytes(run: UnitRun) -> int:
    """Storages that autograd keeps after a forward, weights and tables left out."""
    run.forward()
    known = {parameter.untyped_storage().data_ptr() for parameter in run.module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run.forward()
    assert out.requires_grad
    # Under full recomputation nothing but the unit's input is seen, so no table either.
    return sum(kept.values()) - (run.tables() if len(kept) > 1 else 0)


def peak_bytes(work: Callable[[], None]) -> int:
    """The most that the CPU allocator has out during `work`, over what it had at the beginning."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    out = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        out += event.nbytes()
        peak = max(peak, out)
    return peak
