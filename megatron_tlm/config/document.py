"""A YAML document as settings: read node by node, so that every complaint can name its line."""

from collections.abc import Callable, Collection
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from megatron_tlm.config.hints import NO_FLAG, other_name
from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.schema import fields_of, sections
from megatron_tlm.config.values import Layer, Setting, from_yaml
from megatron_tlm.errors import ConfigError

T = TypeVar("T")

# Keys and values as nodes, with the line of each key.
Entries = dict[str, tuple[int, yaml.Node]]


def read_file(path: Path) -> Layer:
    """The settings of a YAML file. ConfigError: no such file, not YAML, an unknown key, a key twice, a wrong type."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"--config = {path} cannot be read ({reason}); give a YAML file") from None
    return read_text(text, path.name)


def read_text(text: str, origin: str) -> Layer:
    """The settings of a YAML text; `origin` is its name in messages."""
    return with_root(text, origin, lambda root, loader: read_sections(root, loader, origin)) or {}


def with_root(text: str, origin: str, read: Callable[[yaml.Node, yaml.SafeLoader], T]) -> T | None:
    """What `read` makes of a YAML text's root, None of an empty text; ConfigError names the line of what is no YAML."""
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{origin}:{line}: character {chr(error.character)!r} is none of YAML's; delete it, or give a text file"
        ) from None
    try:
        root = loader.get_single_node()
        return read(root, loader) if root is not None else None
    except RecursionError:
        line = loader.get_mark().line + 1
        raise ConfigError(f"{origin}:{line}: brackets or lists are nested too deep; mend that line") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{origin}:{line}: this is not YAML ({error.problem}); mend that line") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}:1: this is not YAML ({error}); give a text file") from None
    finally:
        loader.dispose()


@cache
def preset_names() -> tuple[str, ...]:
    """The scales that are shipped, smallest first."""
    found = _yaml_names(_preset_folder())
    return tuple(sorted(found, key=lambda name: (name != "tiny", name.endswith("b"), name)))


@cache
def preset_variants() -> tuple[str, ...]:
    """What may follow a scale behind a hyphen: an architecture, and `uniform` for no taper."""
    return tuple(sorted(_yaml_names(_preset_folder() / "variants"), key=lambda name: (name == "uniform", name)))


def read_preset(name: str) -> Layer:
    """The settings of a shipped configuration: `440m`, `440m-titans`, `440m-titans-uniform`."""
    scale, *variants = name.split("-")
    if scale not in preset_names():
        raise ConfigError(f"--preset = {name} is not shipped; {did_you_mean(scale, preset_names())}")
    layer = _read_shipped(_preset_folder(), scale)
    for variant in variants:
        if variant not in preset_variants():
            raise ConfigError(f"--preset = {name} has no variant {variant}; {did_you_mean(variant, preset_variants())}")
        layer |= _read_shipped(_preset_folder() / "variants", variant)
    if len(set(variants) - {"uniform"}) > 1 or len(set(variants)) < len(variants):
        raise ConfigError(
            f"--preset = {name} names {len(variants)} variants; "
            "give one architecture at the most, then -uniform or nothing"
        )
    return layer


def _read_shipped(folder: Traversable, name: str) -> Layer:
    return read_text((folder / f"{name}.yaml").read_text(encoding="utf-8"), f"preset {name}")


def _yaml_names(folder: Traversable) -> set[str]:
    return {Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".yaml")}


def _preset_folder() -> Traversable:
    return files("megatron_tlm.config") / "presets"


def read_sections(root: yaml.Node, loader: yaml.SafeLoader, origin: str, *, beside: Collection[str] = ()) -> Layer:
    """The settings of a node that holds sections; keys that stand `beside` them are for another reader."""
    layer: Layer = {}
    for section, (line, node) in entries(root, origin, "the document").items():
        if section in beside:
            continue
        if section not in sections():
            raise ConfigError(f"{origin}:{line}: {section} {_misplaced(section)}")
        if isinstance(node, yaml.ScalarNode) and construct(node, loader, f"{origin}:{line}: {section}") is None:
            continue  # `data:` with all its keys commented out
        declared = fields_of(section)
        for key, (key_line, value) in entries(node, origin, f"{section}:").items():
            address = f"{origin}:{key_line}: {section}.{key}"
            if key not in declared:
                raise ConfigError(f"{address} {_unknown(section, key)}")
            given = construct(value, loader, address)
            layer[section, key] = Setting(from_yaml(given, declared[key].type, address), address)
    return layer


def construct(node: yaml.Node, loader: yaml.SafeLoader, address: str) -> Any:
    """The value of a node; ConfigError for what only looks like one, such as the date 2020-13-45."""
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, OverflowError, TypeError) as error:
        raise ConfigError(f"{address} = {_shown(node)} cannot be read ({error}); put text in quotes") from None


def entries(node: yaml.Node, origin: str, where: str) -> Entries:
    """Keys and values of a mapping; ConfigError for anything else, and for a key that appears twice."""
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{origin}:{line}: {where} holds {_shown(node)} and not `key: value` lines; indent them below it"
        )
    found: Entries = {}
    for key_node, value in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in found:
            raise ConfigError(f"{origin}:{line}: {key} appears twice, first in line {found[key][0]}; keep one of them")
        found[key] = (line, value)
    return found


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list"


def _home(key: str) -> str | None:
    """The section that a key belongs to; field names are unique over sections, as flags are."""
    return next((section for section in sections() if key in fields_of(section)), None)


def _misplaced(key: str) -> str:
    """What to say of an unknown section."""
    home = _home(key.replace("-", "_"))
    if home:
        return f"is not a section; that key belongs under {home}:"
    return f"is not a section; {did_you_mean(key, sections())}"


def _unknown(section: str, key: str) -> str:
    """What to say of an unknown key: it belongs elsewhere, or is misspelt."""
    plain = key.replace("-", "_")
    home = _home(plain)
    if home == section:
        return f"is not a key; write {plain}"
    if home:
        return f"is not a key of {section}; that key belongs under {home}:"
    every = [name for other in sections() for name in fields_of(other)]
    flag = "--" + plain.lower().replace("_", "-")
    if ours := other_name(flag, {"--" + name.replace("_", "-") for name in every}):
        name = ours.replace(",", " ").split()[0].removeprefix("--").replace("-", "_")
        return f"is not a key; write {name} under {_home(name)}:"
    if flag in NO_FLAG:
        return f"is not a key; {NO_FLAG[flag]}"
    own = did_you_mean(key, fields_of(section))
    return f"is not a key; {own if own.startswith('did') else did_you_mean(key, every)}"
