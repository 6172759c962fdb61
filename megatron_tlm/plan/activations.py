"""Bytes of activations: what autograd keeps from a unit's forward to its backward, and what it needs while it runs.

Per token and tensor rank, in elements unless said otherwise (D residual width, d its share under sequence
parallelism, q and k this rank's query and key sizes, f its MLP width, v its vocabulary; see `layers/`):

    unit        kept                                                          working, at its widest
    embedding   8 or 17 bytes of indices                                      the dense gradient of the table
    mixer       d (input)  D (normalised)  2 q  2 k + 4 bytes n (softmax)     2 q + 2 k + D   gradients of q k v o
    mlp         d (input)  D (normalised)  3 f                                2 f + D         gradients of gate and up
    head        d (input)  D (normalised) + 4 bytes v (softmax)               v               logits

and 4 bytes per normalised token. Full recomputation keeps a block's input alone and needs the rest while it runs;
selective recomputation saves the softmax statistics, the attention core's inputs stay. A weight's gradient is made
whole before it is added to the others, beside what else is at work.
"""

from megatron_tlm.plan.mixer_bytes import extra_bytes
from megatron_tlm.plan.mixers import find_mixer
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.units import Unit
from megatron_tlm.plan.workload import Workload

FLOAT32 = 4
INDEX = 8


def kept_bytes(unit: Unit, shape: ModelShape, workload: Workload) -> int:
    """Bytes that autograd keeps for one micro-batch on one tensor rank."""
    if workload.recompute == "full" and unit.kind in ("mixer", "mlp"):
        return workload.tokens * shape.hidden_size * workload.element_bytes // workload.residual_share
    return _kept_whole(unit, shape, workload)


def _kept_whole(unit: Unit, shape: ModelShape, workload: Workload) -> int:
    tensor, share = workload.tensor_degree, workload.residual_share
    stream = shape.hidden_size * workload.element_bytes
    # The norm's input and its reciprocal root, on this rank's tokens; its output on all.
    norm = (stream + FLOAT32) // share + stream
    match unit.kind:
        case "embedding":
            per_token = INDEX if tensor == 1 else 2 * INDEX + 1
        case "mixer" if shape.mixer == "titans_lmm":
            return workload.tokens * norm + extra_bytes(shape, workload).kept
        case "mixer":
            queries, keys = attention_sizes(shape, tensor)
            softmax = 0 if workload.recompute == "selective" else FLOAT32 * shape.num_attention_heads // tensor
            per_token = norm + (2 * queries + 2 * keys) * workload.element_bytes + softmax
            return workload.tokens * per_token + extra_bytes(shape, workload).kept
        case "mlp":
            per_token = norm + 3 * (unit.width or 0) // tensor * workload.element_bytes
        case "head":
            per_token = norm + FLOAT32 * workload.padded_vocab_size // tensor + INDEX + 1
    return workload.tokens * per_token


def working_bytes(unit: Unit, shape: ModelShape, workload: Workload) -> int:
    """Bytes beyond the kept ones at the fullest moment of a unit's forward or backward."""
    tensor, element = workload.tensor_degree, workload.element_bytes
    width = shape.hidden_size
    # The gradient that comes in.
    stream = width * element // workload.residual_share
    match unit.kind:
        case "embedding":
            return workload.tokens * stream + workload.padded_vocab_size // tensor * width * element
        case "mixer" if find_mixer(shape.mixer).has_memory:
            recomputed = _kept_whole(unit, shape, workload) - kept_bytes(unit, shape, workload)
            return workload.tokens * stream + extra_bytes(shape, workload).working + recomputed
        case "mixer":
            queries, keys = attention_sizes(shape, tensor)
            at_work = (2 * queries + 2 * keys + width) * element
            largest = max(queries, keys) * width * element + extra_bytes(shape, workload).working
        case "mlp":
            inner = (unit.width or 0) // tensor
            at_work = (2 * inner + width) * element
            largest = inner * width * element
        case "head":
            vocabulary = workload.padded_vocab_size // tensor
            logits = workload.tokens * vocabulary * element
            return max(logits, vocabulary * width * element + workload.tokens * (stream + width * element))
    again = _kept_whole(unit, shape, workload) - kept_bytes(unit, shape, workload)
    return workload.tokens * stream + max(workload.tokens * at_work, largest) + again


def attention_sizes(shape: ModelShape, tensor_degree: int) -> tuple[int, int]:
    """Rows of queries and of keys that one tensor rank computes; one key/value head at the least."""
    keys = max(shape.num_query_groups // tensor_degree, 1) * shape.kv_channels
    return shape.query_size // tensor_degree, keys
