"""The token mixers there are: what each is made of and what it computes. Its module is looked up in `model.mixers`.

    attention        grouped-query attention (Transformer++)
    gated_attention  the same, its output gated by the block's input (arXiv:2505.06708)
    titans_lmm       a neural memory, written and read in every head (arXiv:2501.00663)
    titans_mag       the memory beside sliding-window attention, one gating the other

Legend: D residual width, N heads, K key/value heads, H head width, m hidden width of a memory, C its chunk,
P persistent tokens, S sequence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.params import ParameterSpec, norm_parameter
from megatron_tlm.plan.shape import ModelShape

GATES = ("none", "elementwise", "headwise")
MEMORY_LAYERS = 2  # of the memory's MLP: the gates are per layer
FORGET_BIAS, MOMENTUM_BIAS = -6.0, 1.0


class Kernels(NamedTuple):
    """Kernels of one chunk of a memory, counted in torch's eager mode; backward with its recomputation."""

    forward: int
    backward: int


CHUNK_KERNELS = Kernels(68, 249)


@dataclass(frozen=True)
class Mixer:
    """`parameters` by local name; `flops` of the forward pass per token as a function of shape and sequence length.

    `matrices` is what `match_params` counts: the entries of the mixer's large matrices, small tensors left out.
    """

    parameters: Callable[[ModelShape], tuple[ParameterSpec, ...]]
    flops: Callable[[ModelShape, int], int]
    matrices: Callable[[ModelShape], int]
    has_memory: bool = False


def find_mixer(name: str) -> Mixer:
    """The mixer of that name; PlanError for one that does not exist."""
    if name not in MIXERS:
        raise PlanError(f"shape.mixer = {name} is not among the {len(MIXERS)} known; use {', '.join(MIXERS)}")
    return MIXERS[name]


def mixer_parameters(shape: ModelShape, layer: int) -> tuple[ParameterSpec, ...]:
    """One layer's mixer under its global names: the norm [D], then what the mixer itself has."""
    prefix = f"layers.{layer}.mixer"
    own = (norm_parameter("norm.weight", shape.hidden_size), *find_mixer(shape.mixer).parameters(shape))
    return tuple(replace(spec, name=f"{prefix}.{spec.name}") for spec in own)


def excess_matrices(shape: ModelShape) -> int:
    """Entries that a layer's mixer has beyond those of plain attention with the same heads."""
    return find_mixer(shape.mixer).matrices(shape) - attention_matrices(shape)


def attention_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """q [N*H, D], k and v [K*H, D], o [D, N*H], split by whole heads."""
    width, heads, groups = shape.hidden_size, shape.num_attention_heads, shape.num_query_groups
    norms = ("q_norm.weight", "k_norm.weight") if shape.qk_norm else ()
    return (
        ParameterSpec("q.weight", (shape.query_size, width), split_dim=0, parts=heads),
        ParameterSpec("k.weight", (shape.key_size, width), split_dim=0, parts=groups, replicable=True),
        ParameterSpec("v.weight", (shape.key_size, width), split_dim=0, parts=groups, replicable=True),
        ParameterSpec("o.weight", (width, shape.query_size), split_dim=1, parts=heads, init="output"),
        *(norm_parameter(name, shape.kv_channels) for name in norms),
    )


def gated_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """Attention and its gate, [N*H, D] or [N, D]."""
    gate = ParameterSpec(
        "gate.weight", (gate_size(shape), shape.hidden_size), split_dim=0, parts=shape.num_attention_heads
    )
    return (*attention_parameters(shape), gate)


def memory_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """A memory per head: its inputs' projections and filters, its gates, its initial weights W_0."""
    width, heads, head = shape.hidden_size, shape.num_attention_heads, shape.kv_channels
    inner, conv = shape.memory_width, shape.memory_conv_width

    def by_head(name: str, *sizes: int, **init: object) -> ParameterSpec:
        return ParameterSpec(name, (heads, *sizes), split_dim=0, parts=heads, decay=False, **init)  # type: ignore[arg-type]

    biases = {"step": 0.0, "momentum": MOMENTUM_BIAS, "forget": FORGET_BIAS}
    return (
        *(
            ParameterSpec(f"memory.{name}.weight", (shape.query_size, width), split_dim=0, parts=heads)
            for name in ("q", "k", "v")
        ),
        *(
            replace(
                by_head(f"memory.{name}_conv.weight"),
                shape=(shape.query_size, conv),
                init="uniform",
                init_scale=conv**-0.5,
            )
            for name in ("q", "k", "v")
        ),
        *(
            replace(by_head(f"memory.{name}.weight", MEMORY_LAYERS, width), init="normal", decay=True)
            for name in biases
        ),
        *(
            by_head(f"memory.{name}.bias", MEMORY_LAYERS, init="constant", init_scale=value)
            for name, value in biases.items()
        ),
        by_head("memory.first", inner, head, init="gaussian", init_scale=1.0),
        by_head("memory.second", head, inner, init="gaussian", init_scale=inner**-0.5),
        by_head("memory.scale", head, init="ones"),
        by_head("memory.shift", head, init="constant", init_scale=0.0),
    )


def lmm_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """Persistent tokens [P, D], the memory, the norm of what is read [N, H], its gate z, the output projection."""
    gate = ParameterSpec(
        "z.weight", (shape.query_size, shape.hidden_size), split_dim=0, parts=shape.num_attention_heads
    )
    return (*_persistent(shape), *memory_parameters(shape), _head_norm(shape, "memory_norm"), gate, _output(shape))


def mag_parameters(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    """Attention and memory with their own q, k, v; a norm per branch, one output projection."""
    norms = (_head_norm(shape, name) for name in ("attention_norm", "memory_norm"))
    return (*_persistent(shape), *attention_parameters(shape), *memory_parameters(shape), *norms)


def _persistent(shape: ModelShape) -> tuple[ParameterSpec, ...]:
    tokens = shape.memory_persistent_tokens
    return (ParameterSpec("persistent", (tokens, shape.hidden_size), decay=False),) if tokens else ()


def _head_norm(shape: ModelShape, name: str) -> ParameterSpec:
    heads = shape.num_attention_heads
    sizes = (heads, shape.kv_channels)
    return ParameterSpec(f"{name}.weight", sizes, split_dim=0, parts=heads, init="ones", decay=False)


def _output(shape: ModelShape) -> ParameterSpec:
    sizes = (shape.hidden_size, shape.query_size)
    return ParameterSpec("o.weight", sizes, split_dim=1, parts=shape.num_attention_heads, init="output")


def gate_size(shape: ModelShape) -> int:
    """Rows of the attention gate: one per channel or one per head."""
    return shape.query_size if shape.attention_gate == "elementwise" else shape.num_attention_heads


def attention_matrices(shape: ModelShape) -> int:
    return shape.hidden_size * (2 * shape.query_size + 2 * shape.key_size)


def gated_matrices(shape: ModelShape) -> int:
    return attention_matrices(shape) + shape.hidden_size * gate_size(shape)


def memory_matrices(shape: ModelShape) -> int:
    weights = 2 * shape.num_attention_heads * shape.memory_width * shape.kv_channels
    return 3 * shape.hidden_size * shape.query_size + weights


def lmm_matrices(shape: ModelShape) -> int:
    return memory_matrices(shape) + 2 * shape.hidden_size * shape.query_size


def mag_matrices(shape: ModelShape) -> int:
    return memory_matrices(shape) + attention_matrices(shape)


def attention_flops(shape: ModelShape, seq_length: int) -> int:
    """Projections, and scores and values over all S keys, as torch's counter has it."""
    return 2 * attention_matrices(shape) + 4 * seq_length * shape.query_size


def gated_flops(shape: ModelShape, seq_length: int) -> int:
    return attention_flops(shape, seq_length) + 2 * shape.hidden_size * gate_size(shape)


def memory_flops(shape: ModelShape, seq_length: int) -> int:
    """The memory over P persistent and S other tokens, shared out over the S."""
    width, size, heads = shape.hidden_size, shape.query_size, shape.num_attention_heads
    inputs = 6 * width * size + 6 * shape.memory_conv_width * size + 6 * heads * MEMORY_LAYERS * width
    inputs = inputs * (seq_length + shape.memory_persistent_tokens) // seq_length
    return inputs + memory_recurrence_flops(shape, seq_length)


def memory_recurrence_flops(shape: ModelShape, seq_length: int) -> int:
    """The chunks' part, which the layer itself recomputes in backward, segment by segment.

    Per head and token: three products of H x m with the anchor, four to read and four to carry W and S on; in the
    chunk two of width H and two of width m; and per layer what gradients weigh, [C, C] x [C, C + 1].
    """
    head, inner, chunk = shape.kv_channels, shape.memory_width, shape.memory_chunk_size
    token = 22 * head * inner + 4 * chunk * (head + inner) + 2 * MEMORY_LAYERS * chunk * (chunk + 1)
    return shape.num_attention_heads * token * (seq_length + shape.memory_persistent_tokens) // seq_length


def chunk_steps(shape: ModelShape, seq_length: int) -> int:
    """Chunks that follow each other in a sequence; 0 for a mixer without memory."""
    if not find_mixer(shape.mixer).has_memory:
        return 0
    return -(-(seq_length + shape.memory_persistent_tokens) // shape.memory_chunk_size)


def lmm_flops(shape: ModelShape, seq_length: int) -> int:
    return memory_flops(shape, seq_length) + 4 * shape.hidden_size * shape.query_size


def mag_flops(shape: ModelShape, seq_length: int) -> int:
    """Attention's part block by block, as `layers.titans.attend_window` computes it."""
    persistent_keys = 4 * shape.hidden_size * shape.key_size * shape.memory_persistent_tokens
    scores_and_values = 4 * met_keys(shape, seq_length) * shape.query_size
    projections = 2 * attention_matrices(shape)
    return memory_flops(shape, seq_length) + projections + (persistent_keys + scores_and_values) // seq_length


def met_keys(shape: ModelShape, seq_length: int) -> int:
    """Pairs of query and key over a sequence: each block of a window's queries meets the persistent keys, and those
    from a window before its first query to its last."""
    window, total = shape.attention_window, 0
    for start in range(0, seq_length, window):
        stop = min(start + window, seq_length)
        total += (stop - start) * (shape.memory_persistent_tokens + stop - max(0, start - window + 1))
    return total


MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        "attention": Mixer(attention_parameters, attention_flops, attention_matrices),
        "gated_attention": Mixer(gated_parameters, gated_flops, gated_matrices),
        "titans_lmm": Mixer(lmm_parameters, lmm_flops, lmm_matrices, has_memory=True),
        "titans_mag": Mixer(mag_parameters, mag_flops, mag_matrices, has_memory=True),
    }
)
