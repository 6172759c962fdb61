"""What every section is made of: fields that carry their help text, and the rules that many of them share."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from megatron_tlm.errors import ConfigError


def option(default: Any, text: str, *, metavar: str | None = None) -> Any:
    """A field whose help text feeds `--help` and the README's table."""
    return field(default=default, metadata={"help": text, "metavar": metavar})


def required(text: str) -> Any:
    """A field that a preset, the YAML or a flag has to give."""
    return field(metadata={"help": text, "metavar": None})


def at_least(section: str, config: object, bounds: Mapping[str, float]) -> None:
    """Refuse every named field below its bound; None is "derive it" and passes."""
    for name, bound in bounds.items():
        value = getattr(config, name)
        if value is not None and value < bound:
            raise ConfigError(f"{section}.{name} = {value} is below {bound:g}; give {bound:g} or more")


def above_zero(section: str, config: object, names: tuple[str, ...]) -> None:
    """Refuse every named field that is not positive."""
    for name in names:
        value = getattr(config, name)
        if value <= 0:
            raise ConfigError(f"{section}.{name} = {value} is not above 0; give a positive number")


def at_most(section: str, config: object, bounds: Mapping[str, float]) -> None:
    """Refuse every named field above its bound; None is "derive it" and passes."""
    for name, bound in bounds.items():
        value = getattr(config, name)
        if value is not None and value > bound:
            raise ConfigError(f"{section}.{name} = {value} is above {bound}; give {bound} or less")


def below_one(section: str, config: object, names: tuple[str, ...]) -> None:
    """Refuse every named field outside [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ConfigError(f"{section}.{name} = {value} lies outside [0, 1); give a probability below 1")
