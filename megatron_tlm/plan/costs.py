"""What each unit costs: FLOPs, parameters, activation bytes.

FLOPs count matrix products, two per multiply-add, as torch's FlopCounterMode does: attention scores over all S keys
(a causal kernel skips half of them, the count does not), padded vocabulary columns included, norms and other
element-wise work left out. Backward is twice forward: the gradient of the input and of the weight.

Legend: D residual width, N query heads, K key/value heads, H head width, F MLP width, S sequence, V padded
vocabulary, t tensor degree.
"""

from dataclasses import dataclass

from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import Unit

BACKWARD_OVER_FORWARD = 2


@dataclass(frozen=True)
class Workload:
    """What a micro-batch brings to a unit on one rank: samples, tokens per sample, bytes per element, sharing."""

    seq_length: int
    micro_batch_size: int
    padded_vocab_size: int
    element_bytes: int = 4
    tensor_degree: int = 1
    sequence_parallel: bool = False
    recompute: str | None = None

    @property
    def tokens(self) -> int:
        return self.micro_batch_size * self.seq_length


@dataclass(frozen=True)
class UnitCost:
    """`flops` per token, forward and backward, over all tensor ranks; `parameters` in all;
    `activation_bytes` kept for the backward of one micro-batch on one tensor rank."""

    flops: int
    parameters: int
    activation_bytes: int


def unit_cost(unit: Unit, shape: ModelShape, workload: Workload) -> UnitCost:
    """The cost of one unit under a workload."""
    forward = forward_flops(unit, shape, workload.seq_length, workload.padded_vocab_size)
    return UnitCost(
        flops=forward * (1 + BACKWARD_OVER_FORWARD),
        parameters=unit.num_parameters,
        activation_bytes=activation_bytes(unit, shape, workload),
    )


def forward_flops(unit: Unit, shape: ModelShape, seq_length: int, padded_vocab_size: int) -> int:
    """FLOPs per token of a unit's forward pass; the embedding is a look-up and costs none."""
    width = shape.hidden_size
    match unit.kind:
        case "embedding":
            return 0
        case "mixer":
            projections = 2 * width * (2 * shape.query_size + 2 * shape.key_size)
            scores_and_values = 4 * seq_length * shape.query_size
            return projections + scores_and_values
        case "mlp":
            return 6 * width * (unit.width or 0)
        case "head":
            return 2 * width * padded_vocab_size


def activation_bytes(unit: Unit, shape: ModelShape, workload: Workload) -> int:
    """Bytes that autograd keeps for one micro-batch on one tensor rank.

    The residual stream is split over the tensor ranks under sequence parallelism, what lies between a column and a
    row layer always is. Full recompute keeps a unit's input alone, selective recompute all but the attention core.
    """
    tensor = workload.tensor_degree
    residual = shape.hidden_size // (tensor if workload.sequence_parallel else 1)
    if unit.kind == "embedding":
        return workload.tokens * 8
    if workload.recompute == "full" and unit.kind != "head":
        return workload.tokens * residual * workload.element_bytes
    match unit.kind:
        case "mixer":
            heads = 2 * shape.query_size + 2 * max(shape.key_size, tensor * shape.kv_channels)
            kept = residual + shape.hidden_size + heads // tensor
            extra = 0 if workload.recompute == "selective" else 4 * shape.num_attention_heads // tensor
        case "mlp":
            kept = residual + shape.hidden_size + 4 * (unit.width or 0) // tensor
            extra = 0
        case _:
            kept = residual + shape.hidden_size
            extra = 4 * workload.padded_vocab_size // tensor
    return workload.tokens * (kept * workload.element_bytes + extra)
