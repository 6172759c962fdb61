"""Bytes of activations that a mixer needs beyond plain attention's, per micro-batch on one tensor rank.

Gates and head norms are counted; a neural memory's are reckoned, its many small tensors by coefficients fitted to
what torch allocates (within a sixth, see the test). A memory keeps what surrounds the recurrence, and the first state
of each segment; a segment's inside, the bulk by far, is there only while its backward runs, or all the time where the
sequence is a single segment.

Legend: H head width, m hidden width of a memory, C its chunk, n this rank's heads.
"""

from dataclasses import dataclass

from megatron_tlm.plan.mixers import find_mixer, gate_size
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.workload import Workload

FLOAT32 = 4
SEGMENT_CHUNKS = 16


@dataclass(frozen=True)
class MixerBytes:
    """Kept from forward to backward, and needed besides while the mixer runs."""

    kept: int
    working: int


def extra_bytes(shape: ModelShape, workload: Workload) -> MixerBytes:
    """What a mixer with attention needs more than that; for a mixer without, the whole."""
    tensor, element, tokens = workload.tensor_degree, workload.element_bytes, workload.tokens
    cast = element if element != FLOAT32 else 0
    if find_mixer(shape.mixer).has_memory:
        return memory_bytes(shape, workload)
    kept = 0
    if shape.attention_gate != "none":
        # The sigmoid, its copy in the activation's dtype where that is another, the product.
        kept += gate_size(shape) * (FLOAT32 + cast) // tensor + shape.query_size * element // tensor
    kept += norm_bytes(shape, workload)
    return MixerBytes(tokens * kept, tokens * kept)


def norm_bytes(shape: ModelShape, workload: Workload) -> int:
    """Per token: queries and keys before their norms, and what each head was multiplied by."""
    if not shape.qk_norm:
        return 0
    heads = shape.num_attention_heads // workload.tensor_degree
    heads += max(shape.num_query_groups // workload.tensor_degree, 1)
    return heads * (shape.kv_channels * workload.element_bytes + FLOAT32)


def memory_bytes(shape: ModelShape, workload: Workload) -> MixerBytes:
    """Of this rank's memories; `titans_mag` has attention's besides."""
    head, inner, chunk = shape.kv_channels, shape.memory_width, shape.memory_chunk_size
    heads, batch = shape.num_attention_heads // workload.tensor_degree, workload.micro_batch_size
    length = workload.seq_length + shape.memory_persistent_tokens
    around = heads * (14 * head * FLOAT32 + 4 * head * workload.element_bytes + 30 * FLOAT32)
    segment = min(length, SEGMENT_CHUNKS * chunk)
    segments = -(-length // segment)
    state = 4 * inner * head
    inside = batch * segment * heads * FLOAT32 * (15 * inner + 12 * head + 12 * chunk + state // chunk + 40)
    kept = batch * (length * around + segments * heads * state * FLOAT32)
    if shape.mixer == "titans_mag":
        # The branch's norm and the product with its gate.
        kept += workload.tokens * heads * head * (2 * FLOAT32 + workload.element_bytes)
        kept += workload.tokens * norm_bytes(shape, workload)
    if segments == 1:
        return MixerBytes(kept + inside, 0)
    return MixerBytes(kept, inside)
