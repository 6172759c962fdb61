"""What each unit costs: FLOPs, work, parameters, bytes.

`flops` count matrix products over all tensor ranks, two per multiply-add: attention scores over all S keys (a causal
kernel skips half of them, this count does not), padded vocabulary columns included, norms and other element-wise work
left out; backward is twice forward. That is the convention in which models are compared.

`Work` is what one rank really computes, and what time follows: only the scores that a causal kernel needs, flash
attention's backward, which computes the scores again (5 products for 2), and what recomputation repeats.

Legend: D residual width, N query heads, K key/value heads, H head width, F MLP width, S sequence, V padded
vocabulary, t tensor degree; lower case = one tensor rank's share.
"""

from dataclasses import dataclass

from megatron_tlm.plan.activations import attention_sizes, kept_bytes, working_bytes
from megatron_tlm.plan.mixers import attention_matrices, find_mixer, memory_recurrence_flops
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import Unit
from megatron_tlm.plan.workload import Workload

__all__ = ["UnitCost", "Work", "Workload", "forward_flops", "tensor_traffic", "unit_cost", "unit_work"]

BACKWARD_OVER_FORWARD = 2


@dataclass(frozen=True)
class Work:
    """FLOPs per token on one tensor rank: forward, and backward with whatever is recomputed."""

    forward: int
    backward: int


@dataclass(frozen=True)
class UnitCost:
    """`flops` per token, forward and backward, over all tensor ranks; `parameters` in all.

    On one tensor rank: `activation_bytes` kept for the backward of one micro-batch, `working_bytes` more while the
    unit runs, `forward_work` and `backward_work` in FLOPs per token.
    """

    flops: int
    parameters: int
    activation_bytes: int
    working_bytes: int = 0
    forward_work: int = 0
    backward_work: int = 0

    @property
    def forward_flops(self) -> int:
        return self.flops // (1 + BACKWARD_OVER_FORWARD)


def unit_cost(unit: Unit, shape: ModelShape, workload: Workload) -> UnitCost:
    """The cost of one unit under a workload."""
    forward = forward_flops(unit, shape, workload.seq_length, workload.padded_vocab_size)
    work = unit_work(unit, shape, workload)
    return UnitCost(
        flops=forward * (1 + BACKWARD_OVER_FORWARD),
        parameters=unit.num_parameters,
        activation_bytes=kept_bytes(unit, shape, workload),
        working_bytes=working_bytes(unit, shape, workload),
        forward_work=work.forward,
        backward_work=work.backward,
    )


def forward_flops(unit: Unit, shape: ModelShape, seq_length: int, padded_vocab_size: int) -> int:
    """FLOPs per token of a unit's forward pass; the embedding is a look-up and costs none."""
    width = shape.hidden_size
    match unit.kind:
        case "embedding":
            return 0
        case "mixer":
            return find_mixer(shape.mixer).flops(shape, seq_length)
        case "mlp":
            return 6 * width * (unit.width or 0)
        case "head":
            return 2 * width * padded_vocab_size


def unit_work(unit: Unit, shape: ModelShape, workload: Workload) -> Work:
    """What one tensor rank computes of a unit per token."""
    width, tensor = shape.hidden_size, workload.tensor_degree
    again = workload.recompute
    match unit.kind:
        case "embedding":
            return Work(0, 0)
        case "mixer" if find_mixer(shape.mixer).has_memory:
            # All of it counts: the memory has no core that a kernel would compute in part or again.
            products = find_mixer(shape.mixer).flops(shape, workload.seq_length) // tensor
            segments = memory_recurrence_flops(shape, workload.seq_length) // tensor
            return Work(products, 2 * products + segments + (products if again == "full" else 0))
        case "mixer":
            queries, keys = attention_sizes(shape, tensor)
            extra = find_mixer(shape.mixer).matrices(shape) - attention_matrices(shape)
            products = 2 * width * (2 * queries + 2 * keys) + 2 * extra // tensor
            # A query sees (S + 1) / 2 keys on average; scores and values are one product each.
            core = 2 * (workload.seq_length + 1) * queries
            repeated = {"full": products + core, "selective": core}.get(again or "", 0)
            return Work(products + core, 2 * products + core * 5 // 2 + repeated)
        case "mlp":
            products = 6 * width * (unit.width or 0) // tensor
            return Work(products, (3 if again == "full" else 2) * products)
        case "head":
            products = 2 * width * workload.padded_vocab_size // tensor
            return Work(products, 2 * products)


def tensor_traffic(unit: Unit, shape: ModelShape, workload: Workload) -> int:
    """Bytes that one tensor rank sends for a unit and a micro-batch, forward, backward and recomputed forward.

    A ring all-reduce, or an all-gather and a reduce-scatter under sequence parallelism, moves 2 (t - 1) / t of the
    residual stream; a block has one forward and one backward. The head has half of that, its loss a few numbers.
    """
    tensor = workload.tensor_degree
    if tensor == 1:
        return 0
    stream = workload.tokens * shape.hidden_size * workload.element_bytes
    around = 2 * stream * (tensor - 1) // tensor
    if unit.kind == "embedding":
        return around // 2 if workload.sequence_parallel else around
    if unit.kind == "head":
        statistics = 3 * 4 * workload.tokens
        gathered = around // 2 if workload.sequence_parallel else 0
        return gathered + (around // 2 if workload.sequence_parallel else around) + statistics
    return around * (3 if workload.recompute == "full" else 2)
