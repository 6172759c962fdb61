"""What makes two models the same model: its sizes, independent of any layout. Stored in every checkpoint."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from megatron_tlm.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """The resolved sizes of a decoder; `widths[l]` is layer l's MLP width, `vocab_size` is unpadded."""

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

    def __post_init__(self) -> None:
        if len(self.widths) != self.num_layers:
            raise PlanError(
                f"shape.widths holds {len(self.widths)} widths for num_layers = {self.num_layers}; give one per layer"
            )

    @property
    def query_size(self) -> int:
        """Rows of the query projection, N*H."""
        return self.num_attention_heads * self.kv_channels

    @property
    def key_size(self) -> int:
        """Rows of the key and of the value projection, K*H."""
        return self.num_query_groups * self.kv_channels

    def to_json(self) -> dict[str, Any]:
        """Plain values for a manifest."""
        return asdict(self) | {"widths": list(self.widths)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ModelShape":
        """The inverse of `to_json`; PlanError for a missing or unknown field."""
        known = {item.name for item in fields(cls)}
        if set(values) != known:
            odd = sorted(set(values) ^ known)
            raise PlanError(f"shape fields {', '.join(odd)} are missing or unknown; this version knows {sorted(known)}")
        return cls(**(values | {"widths": tuple(values["widths"])}))

    def differences(self, other: "ModelShape") -> tuple[str, ...]:
        """A phrase `field = ours (theirs)` for each field that differs."""
        pairs = ((item.name, getattr(self, item.name), getattr(other, item.name)) for item in fields(self))
        return tuple(f"{name} = {ours} (not {theirs})" for name, ours, theirs in pairs if ours != theirs)
