"""What makes two models the same model: its sizes, independent of any layout. Stored in every checkpoint."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from megatron_tlm.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """The resolved sizes of a decoder; `widths[l]` is layer l's MLP width, `vocab_size` is unpadded.

    What a mixer does not have is left at its default, and out of JSON. `cms_levels` MLPs in a row share a layer's
    width, in multiples of `cms_multiple`; every kind of memory (`plan.mixers`) has one head per query head.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    widths: tuple[int, ...]
    tied_embeddings: bool
    rotary_base: float
    norm_epsilon: float
    mixer: str = "attention"
    attention_gate: str = "none"
    qk_norm: bool = False
    attention_window: int = 0
    cms_levels: int = 1
    cms_multiple: int = 1
    memory_chunk_size: int = 0
    memory_expansion: int = 0
    memory_conv_width: int = 0
    memory_persistent_tokens: int = 0
    memory_max_step: float = 0.0

    def __post_init__(self) -> None:
        if len(self.widths) != self.num_layers:
            raise PlanError(
                f"shape.widths holds {len(self.widths)} widths for num_layers = {self.num_layers}; give one per layer"
            )
        if min(self.widths, default=1) < self.cms_levels * self.cms_multiple or self.cms_levels < 1:
            raise PlanError(
                f"shape.cms_levels = {self.cms_levels} of at least {self.cms_multiple} do not fit into the narrowest "
                f"layer's width {min(self.widths)}; use fewer levels or a larger taper_end"
            )
        if self.memory_chunk_size and self.memory_persistent_tokens % self.memory_chunk_size:
            raise PlanError(
                f"shape.memory_persistent_tokens = {self.memory_persistent_tokens} is not a multiple of "
                f"memory_chunk_size = {self.memory_chunk_size}, chunks count from the first of them; give a multiple"
            )

    @property
    def query_size(self) -> int:
        """Rows of the query projection, N*H."""
        return self.num_attention_heads * self.kv_channels

    @property
    def key_size(self) -> int:
        """Rows of the key and of the value projection, K*H."""
        return self.num_query_groups * self.kv_channels

    @property
    def memory_width(self) -> int:
        """Hidden width m of one head's memory MLP."""
        return self.memory_expansion * self.kv_channels

    @property
    def num_units(self) -> int:
        """Embedding, a mixer and `cms_levels` MLPs per layer, head."""
        return self.num_layers * (1 + self.cms_levels) + 2

    @property
    def num_branches(self) -> int:
        """What writes into the residual stream, over all layers."""
        return self.num_layers * (1 + self.cms_levels)

    def level_width(self, layer: int, level: int) -> int:
        """Width of level `level` (from 0, the fastest) of a layer: even shares, what is left over to the first."""
        units = self.widths[layer] // self.cms_multiple
        return self.cms_multiple * ((units + self.cms_levels - level - 1) // self.cms_levels)

    def mlp_widths(self) -> Iterator[tuple[str, int]]:
        """Every MLP as (`layer 3` or `layer 3 level 1`, width)."""
        for layer, width in enumerate(self.widths):
            if self.cms_levels == 1:
                yield f"layer {layer}", width
            else:
                for level in range(self.cms_levels):
                    yield f"layer {layer} level {level}", self.level_width(layer, level)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a manifest; what is at its default is left out."""
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name == "mixer" or item.default is MISSING or getattr(self, item.name) != item.default
        }
        return values | {"widths": list(self.widths)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ModelShape":
        """The inverse of `to_json`; PlanError for a missing or unknown field."""
        known = {item.name for item in fields(cls)}
        needed = {item.name for item in fields(cls) if item.default is MISSING}
        odd = sorted((set(values) - known) | (needed - set(values)))
        if odd:
            raise PlanError(f"shape fields {', '.join(odd)} are missing or unknown; this version knows {sorted(known)}")
        return cls(**(values | {"widths": tuple(values["widths"])}))

    def differences(self, other: "ModelShape") -> tuple[str, ...]:
        """A phrase `field = ours (theirs)` for each field that differs."""
        pairs = ((item.name, getattr(self, item.name), getattr(other, item.name)) for item in fields(self))
        return tuple(f"{name} = {ours} (not {theirs})" for name, ours, theirs in pairs if ours != theirs)
