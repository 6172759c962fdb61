"""A configuration as text and back: what is printed, saved beside a run and kept in a checkpoint."""

from dataclasses import asdict
from typing import Any

import yaml

from megatron_tlm import __version__
from megatron_tlm.config.document import read_text
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config


def dump(config: Config) -> str:
    """The whole configuration as YAML, a file that --config reads back to the same one."""
    text = yaml.safe_dump(as_mapping(config), sort_keys=False, allow_unicode=True, width=120)
    return f"# Resolved by megatron-tlm {__version__}; `megatron-tlm train --config` repeats it.\n{text}"


def parse(text: str, origin: str = "config.yaml") -> Config:
    """The configuration of a YAML text that gives every required key."""
    return build([read_text(text, origin)])


def as_mapping(config: Config) -> dict[str, dict[str, Any]]:
    """Section -> key -> value in plain types: what YAML and JSON can hold."""
    return {
        section: {key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()}
        for section, keys in asdict(config).items()
    }


def from_mapping(mapping: dict[str, Any], origin: str) -> Config:
    """The configuration that `as_mapping` gave, checked as a YAML file is; `origin` is its name in messages."""
    return parse(yaml.safe_dump(mapping, sort_keys=False), origin)
