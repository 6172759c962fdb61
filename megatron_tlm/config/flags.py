"""The command line, made from the schema: one flag per field, plus what Megatron users type out of habit."""

import argparse
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass
from typing import Any

from megatron_tlm.config.document import preset_names, preset_variants
from megatron_tlm.config.megatron import ALIASES, IDLE, LENGTHS, REFUSED, REFUSED_VALUES, SETTLED, VALUE_ALIASES
from megatron_tlm.config.parser import Parser
from megatron_tlm.config.schema import fields_of, sections
from megatron_tlm.config.values import Layer, Setting, base_type, choices, from_flag, is_list

_TITLES = {
    "model": "model: sizes",
    "architecture": "architecture: token mixer and continuum memory",
    "taper": "taper: MLP width over depth",
    "parallel": "parallel: layout over ranks",
    "training": "training: batches, length, precision",
    "optimizer": "optimizer: AdamW and its learning rate",
    "data": "data: corpora and tokenizer",
    "checkpoint": "checkpoint: save and continue",
    "resilience": "resilience: stopping and bad steps",
    "logging": "logging",
}
_METAVARS = {int: "N", float: "X", str: "TEXT", tuple[str, ...]: "TEXT", tuple[int, ...]: "N"}
NOTES = """\
notes:
  A flag outweighs --config, which outweighs --preset. A YAML has the groups above as sections and the flags as keys,
  with underscores. --flag_name and --flag-name are the same. A switch that is a key of the YAML is taken back by --no-
  before its name (--bf16, --no-bf16), or without it where it has one (--no-save-optim, --save-optim). `none` takes back
  a value that may be left open.
  Megatron's flags for what is always done here (--swiglu, --normalization RMSNorm, --use-flash-attn, --optimizer adam,
  --disable-bias-linear, ...) are accepted; one that asks for something else is refused by name.
"""


@dataclass(frozen=True)
class Flags:
    """What a command line says: its sources, its values, the Megatron flags met and what to tell about them."""

    preset: str | None
    config: str | None
    layer: Layer
    lengths: tuple[tuple[str, int], ...]
    settled: frozenset[str]
    notes: tuple[str, ...]


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def add_config_flags(parser: Parser) -> None:
    """Give a parser --preset, --config and a flag for every field of the schema."""
    sources = parser.add_argument_group("where values come from")
    names = ", ".join(preset_names())
    variants = ", ".join(f"-{name}" for name in preset_variants())
    text = f"a shipped configuration: {names}; each also with {variants}, such as 440m-titans-uniform"
    sources.add_argument("--preset", metavar="NAME", help=text)
    sources.add_argument("--config", metavar="FILE", help="a YAML with the sections below")
    for section in sections():
        group = parser.add_argument_group(_TITLES.get(section, section))
        for name, item in fields_of(section).items():
            _add_field(group, section, name, item)
    for flag, (section, name, constant) in ALIASES.items():
        declared = fields_of(section)[name].type
        arguments = _arguments(declared) if constant is None else 0
        parser.add_argument(
            flag, action=_Store, nargs=arguments, const=constant, dest=f"{section}.{name}", help=argparse.SUPPRESS
        )
    for flag in (*SETTLED, *LENGTHS, *IDLE, *REFUSED):
        parser.add_argument(flag, action=_Habit, nargs=_habit_arguments(flag), dest="habits", help=argparse.SUPPRESS)
    parser.set_defaults(given={}, habits=[])
    parser.checks.append(lambda namespace: tuple(_refusals(namespace)))


def read_flags(namespace: argparse.Namespace) -> Flags:
    """The typed values of a parsed command line. ConfigError for a value of a wrong type."""
    habits: list[tuple[str, list[str]]] = namespace.habits
    layer: Layer = {}
    for key, (flag, value) in namespace.given.items():
        section, name = key.split(".")
        meant = VALUE_ALIASES.get(name, {}).get(value, value) if isinstance(value, str) else value
        layer[section, name] = Setting(from_flag(meant, fields_of(section)[name].type, flag), flag)
    return Flags(
        preset=namespace.preset,
        config=namespace.config,
        layer=layer,
        lengths=tuple((flag, from_flag(values[0], int, flag)) for flag, values in habits if flag in LENGTHS),
        settled=frozenset(flag for flag, _ in habits if flag in SETTLED),
        notes=tuple(f"{flag} has no effect: {IDLE[flag]}" for flag, _ in habits if flag in IDLE),
    )


class _Store(argparse.Action):
    """Keep a field's value with the flag that gave it; the last one counts."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        value = self.const if self.nargs == 0 else values
        namespace.given = namespace.given | {self.dest: (option, value)}


class _Habit(argparse.Action):
    """Keep a Megatron flag that is no field, with its values."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.habits = [*namespace.habits, (option, list(values or []))]


def _add_field(group: Any, section: str, name: str, item: Field[Any]) -> None:
    flag, dest, text = flag_name(name), f"{section}.{name}", help_text(item)
    if base_type(item.type) is bool:
        off = flag_name(name.removeprefix("no_")) if name.startswith("no_") else flag_name(f"no_{name}")
        group.add_argument(flag, action=_Store, nargs=0, const=True, dest=dest, help=text)
        group.add_argument(off, action=_Store, nargs=0, const=False, dest=dest, help=argparse.SUPPRESS)
        return
    names = choices(item.type)
    metavar = item.metadata["metavar"] or ("{" + ",".join(names) + "}" if names else _METAVARS[base_type(item.type)])
    group.add_argument(flag, action=_Store, nargs=_arguments(item.type), dest=dest, metavar=metavar, help=text)


def help_text(item: Field[Any]) -> str:
    """A field's text with its default, where the text does not speak of it."""
    text = str(item.metadata["help"])
    told = "(default" in text or item.default in (None, ()) or item.default is MISSING or isinstance(item.default, bool)
    return (text if told else f"{text} (default: {item.default})").replace("%", "%%")


def _arguments(declared: Any) -> str | None:
    return "+" if is_list(declared) else None


def _habit_arguments(flag: str) -> int | str:
    if flag in SETTLED:
        return 1 if SETTLED[flag].accepts else 0
    return 1 if flag in LENGTHS else "*"


def _refusals(namespace: argparse.Namespace) -> Iterator[str]:
    """A sentence for each Megatron flag that asks for what is not done here."""
    for flag, values in namespace.habits:
        if flag in REFUSED:
            yield f"{' '.join((flag, *values))} is not offered: {REFUSED[flag]}"
        elif flag in SETTLED and values:
            accepts = {name.lower() for name in SETTLED[flag].accepts}
            if "*" not in accepts and values[0].lower() not in accepts:
                yield f"{flag} = {values[0]} is not offered: {SETTLED[flag].reason}; leave it out"
    for key, (flag, value) in namespace.given.items():
        refused = REFUSED_VALUES.get(key.split(".")[1], {})
        if isinstance(value, str) and value in refused:
            yield f"{flag} = {value} {refused[value]}"
