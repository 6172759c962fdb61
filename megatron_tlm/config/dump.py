"""A configuration as text and back: what is printed, saved beside a run and kept in a checkpoint."""

from dataclasses import asdict
from typing import Any

import yaml

from megatron_tlm import __version__
from megatron_tlm.config.document import read_text
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config, fields_of


def dump(config: Config) -> str:
    """The whole configuration as YAML, a file that --config reads back to the same one."""
    text = yaml.safe_dump(as_mapping(config), sort_keys=False, allow_unicode=True, width=120)
    return f"# Resolved by megatron-tlm {__version__}; `megatron-tlm train --config` repeats it.\n{text}"


ALWAYS_TOLD = "taper"  # what a model of this package is, by default or not


def dump_differences(config: Config) -> str:
    """The taper, and the fields that are not as by default: YAML that --config reads back to the same configuration."""
    told: dict[str, dict[str, Any]] = {}
    for section, keys in as_mapping(config).items():
        defaults = {name: item.default for name, item in fields_of(section).items()}
        own = getattr(config, section)
        told_whole = section == ALWAYS_TOLD
        changed = {key: value for key, value in keys.items() if told_whole or getattr(own, key) != defaults[key]}
        told |= {section: changed} if changed else {}
    text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120)
    where = f"{config.logging.log_dir}/config.yaml has" if config.logging.log_dir else "--show-config prints"
    head = (
        f"# Resolved by megatron-tlm {__version__}: the taper, and all else that is not a default; {where} every field."
    )
    return f"{head}\n{text}"


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
