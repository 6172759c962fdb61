"""Which of the four architectures a model has: the token mixer, and the continuum memory in the MLP's place.

Where papers are silent the defaults are choices of this project, with their reasons in the README's "Architectures".
"""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.config.field import at_least, option
from megatron_tlm.errors import ConfigError

Mixer = Literal["attention", "gated_attention", "titans_lmm", "titans_mag"]
Gate = Literal["elementwise", "headwise"]
CmsUpdate = Literal["mean", "sum"]


@dataclass(frozen=True)
class ArchitectureConfig:
    """A mixer's own sizes count only where that mixer is chosen."""

    mixer: Mixer = option("attention", "what mixes tokens in every layer")
    attention_gate: Gate = option("elementwise", "gated_attention: a gate per channel, or one per head (cheaper)")
    qk_norm: bool = option(False, "normalise each head's queries and keys before they are rotated")
    match_params: bool = option(
        True, "narrow the baseline MLP by the large matrices a mixer has beyond attention's: as many parameters in all"
    )
    cms_levels: int = option(1, "MLPs in a row per layer that share its width (Hope's continuum memory); 1 is the MLP")
    cms_periods: tuple[int, ...] = option(
        (), "steps between the updates of each level, the fastest first (default: 1 2 32 for three levels)"
    )
    cms_period_tokens: tuple[int, ...] = option(
        (), "the periods in tokens instead; rounded to whole steps, at least one"
    )
    cms_update: CmsUpdate = option(
        "mean", "a slow level steps by the mean gradient of its period, or by the sum of each step's own AdamW update"
    )
    memory_chunk_size: int = option(16, "titans: tokens whose surprise is measured at the same weights")
    memory_expansion: int = option(4, "titans: hidden width of a head's memory over the head's width")
    memory_conv_width: int = option(4, "titans: width of the causal filters after q, k and v")
    memory_persistent_tokens: int = option(128, "titans: learned tokens in front of every sequence")
    memory_max_step: float = option(0.01, "titans: largest step of the memory's inner learning")
    compile_memory: bool = option(
        False, "titans: fuse a chunk's kernels by torch.compile, in training; needs a C++ compiler, starts later"
    )
    attention_window: int = option(2048, "titans_mag: keys that the attention branch looks back on")

    def __post_init__(self) -> None:
        bounds = {"cms_levels": 1, "memory_chunk_size": 1, "memory_expansion": 1, "memory_conv_width": 1}
        bounds |= {"memory_persistent_tokens": 0, "memory_max_step": 0, "attention_window": 1}
        at_least("architecture", self, bounds)
        self._check_periods()
        self._check_switches()
        chunk, persistent = self.memory_chunk_size, self.memory_persistent_tokens
        if self.mixer.startswith("titans") and persistent % chunk:
            raise ConfigError(
                f"architecture.memory_persistent_tokens = {persistent} is not a multiple of memory_chunk_size = "
                f"{chunk}, chunks count from the first of them; give {-(-persistent // chunk) * chunk}"
            )
        if self.mixer == "titans_lmm" and self.qk_norm:
            raise ConfigError(
                "architecture.qk_norm = true has no effect on titans_lmm, whose queries and keys have length 1 "
                "already; leave it out"
            )

    def _check_switches(self) -> None:
        """What is asked of a part that this model does not have."""
        for name, asked, has_part, part in (
            ("attention_gate", self.attention_gate != "elementwise", self.mixer == "gated_attention", "gate"),
            ("compile_memory", self.compile_memory, self.mixer.startswith("titans"), "memory"),
            ("cms_update", self.cms_update != "mean", self.cms_levels > 1, "slow level"),
        ):
            if asked and not has_part:
                raise ConfigError(
                    f"architecture.{name} = {str(getattr(self, name)).lower()} finds no {part} in mixer = {self.mixer} "
                    f"with cms_levels = {self.cms_levels}; leave it out, or choose another architecture"
                )

    def _check_periods(self) -> None:
        if self.cms_periods and self.cms_period_tokens:
            raise ConfigError(
                f"architecture.cms_periods = {shown(self.cms_periods)} and cms_period_tokens = "
                f"{shown(self.cms_period_tokens)} both set the periods; give one"
            )
        for name in ("cms_periods", "cms_period_tokens"):
            values = getattr(self, name)
            if not values:
                continue
            if len(values) != self.cms_levels:
                raise ConfigError(
                    f"architecture.{name} = {shown(values)} are {len(values)} for cms_levels = {self.cms_levels}; "
                    "give one per level"
                )
            if values[0] < 1 or list(values) != sorted(values):
                raise ConfigError(
                    f"architecture.{name} = {shown(values)} do not rise from 1 on; put the fastest level first"
                )
        if self.cms_levels not in (1, len(HOPE_PERIODS)) and not (self.cms_periods or self.cms_period_tokens):
            raise ConfigError(
                f"architecture.cms_levels = {self.cms_levels} has no default periods, {len(HOPE_PERIODS)} levels have; "
                "give --cms-periods"
            )

    def periods(self, tokens_per_step: int) -> tuple[int, ...]:
        """Steps between the updates of each level, the fastest first; (1,) for a plain MLP."""
        if self.cms_period_tokens:
            return tuple(max(1, round(tokens / tokens_per_step)) for tokens in self.cms_period_tokens)
        return self.cms_periods or (HOPE_PERIODS if self.cms_levels > 1 else (1,))


# One step, and the 1M and 16M tokens of Nested Learning's figure in steps of 0.5M tokens.
HOPE_PERIODS = (1, 2, 32)


def shown(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))
