"""A study's file: a run's YAML with a `study:` section, which says what is varied and how often.

preset: tiny                     as --preset would
training: {train_iters: 500}     sections of a run, for every run of the study
study:
  arms:                          what is compared; each a few sections that differ from the rest of the file
    uniform: {taper: {taper_schedule: uniform}}
    cosine: {taper: {taper_schedule: cosine}}
  learning_rates: [1.0e-3, 2.0e-3, 4.0e-3]
  seeds: [1, 2, 3]
  tuning_seeds: [1]              seeds on which every arm tries every learning rate (default: the first)
  reference: uniform             the arm that others are compared with (default: the first)
  ranks: 1                       processes of one run
  groups:                        models that each get every arm; arms are compared within one (default: one group)
    small: {preset: tiny}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megatron_tlm.config.document import Entries, construct, entries, read_preset, read_sections, with_root
from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.schema import MAX_SEED
from megatron_tlm.config.values import Layer, from_yaml
from megatron_tlm.errors import ConfigError

STUDY, PRESET = "study", "preset"
_KEYS = ("arms", "learning_rates", "seeds", "tuning_seeds", "reference", "ranks", "groups")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+>-]{0,99}")
# An arm is another model or optimizer, on the same data for as long on the same ranks.
_ARM_SECTIONS = ("model", "architecture", "taper", "optimizer")
_TUNED = ("lr", "min_lr", "seq_length")
# What the study itself sets in every run.
_OWN = (
    ("training", "seed"),
    ("training", "exit_interval"),
    ("checkpoint", "save"),
    ("checkpoint", "load"),
    ("checkpoint", "allow_fresh_start"),
    ("checkpoint", "finetune"),
    ("checkpoint", "ckpt_step"),
    ("logging", "log_dir"),
    ("logging", "tensorboard_dir"),
    ("logging", "heartbeat_dir"),
)


@dataclass(frozen=True)
class Group:
    """A model that gets every arm; `name` is empty where the file has no groups."""

    name: str
    preset: Layer
    layer: Layer


@dataclass(frozen=True)
class StudyFile:
    """What a study's file says: settings of all runs, what is varied, and how often."""

    name: str
    preset: Layer
    layer: Layer
    groups: tuple[Group, ...]
    arms: Mapping[str, Layer]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    reference: str
    ranks: int


def read_study(path: Path) -> StudyFile:
    """The study of a file; ConfigError naming line and key of what cannot be meant."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"study = {path} cannot be read ({reason}); give a YAML file") from None
    study = with_root(text, path.name, lambda root, loader: _Reader(path, loader).study(root))
    if study is None:
        raise ConfigError(f"study = {path} is empty; give a run's YAML with a study: section")
    return study


class _Reader:
    """The nodes of one document, with its name for messages."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self._loader, self._origin, self._name = loader, path.name, path.stem

    def study(self, root: yaml.Node) -> StudyFile:
        top = entries(root, self._origin, "the document")
        if STUDY not in top:
            raise ConfigError(f"{self._origin} has no study: section; give one with arms, learning_rates and seeds")
        line, node = top[STUDY]
        given = entries(node, self._origin, "study:")
        for key, (key_line, _) in given.items():
            if key not in _KEYS:
                raise ConfigError(f"{self._origin}:{key_line}: study.{key} is not a key; {did_you_mean(key, _KEYS)}")
        for key in ("arms", "learning_rates", "seeds"):
            if key not in given:
                raise ConfigError(f"{self._origin}:{line}: study.{key} is not given; add it below study:")
        arms = self._named(given, "arms")
        seeds = self._numbers(given, "seeds", int)
        tuning = self._numbers(given, "tuning_seeds", int) if "tuning_seeds" in given else seeds[:1]
        self._check_seeds((*seeds, *tuning))
        groups = self._named(given, "groups") if "groups" in given else {}
        layers = {name: self._layer(node, f"study.arms.{name}", arm=True) for name, (_, node) in arms.items()}
        return StudyFile(
            name=self._name,
            preset=self._preset(top),
            layer=self._own(read_sections(root, self._loader, self._origin, beside=(STUDY, PRESET))),
            groups=tuple(self._group(name, *entry) for name, entry in groups.items()) or (Group("", {}, {}),),
            arms=layers,
            learning_rates=self._learning_rates(given),
            seeds=seeds,
            tuning_seeds=tuning,
            reference=self._reference(given, layers),
            ranks=self._ranks(given),
        )

    def _value(self, given: Entries, key: str, declared: Any) -> tuple[Any, str]:
        line, node = given[key]
        address = f"{self._origin}:{line}: study.{key}"
        return from_yaml(construct(node, self._loader, address), declared, address), address

    def _numbers(self, given: Entries, key: str, kind: type) -> tuple[Any, ...]:
        """A list of different numbers, or one that stands for a list of one."""
        line, node = given[key]
        address = f"{self._origin}:{line}: study.{key}"
        value = construct(node, self._loader, address)
        numbers = tuple(from_yaml(item, kind, address) for item in (value if isinstance(value, list) else [value]))
        if not numbers or len(set(numbers)) < len(numbers):
            raise ConfigError(f"{address} = {value} is empty or says a number twice; give each once")
        return numbers

    def _learning_rates(self, given: Entries) -> tuple[float, ...]:
        rates = self._numbers(given, "learning_rates", float)
        if min(rates) <= 0:
            raise ConfigError(f"study.learning_rates = {min(rates):g} is not positive; give rates above 0")
        named: dict[str, float] = {}
        for rate in rates:
            other = named.setdefault(f"{rate:g}", rate)
            if other != rate:
                raise ConfigError(
                    f"study.learning_rates = {rate!r} and {other!r} are both called {rate:g}; rates differ in their "
                    "first six digits, leave one out"
                )
        return tuple(sorted(rates))

    def _check_seeds(self, seeds: tuple[int, ...]) -> None:
        for seed in seeds:
            if not 0 <= seed <= MAX_SEED:
                raise ConfigError(f"study.seeds = {seed} lies outside 0 to {MAX_SEED}; give one from there")

    def _reference(self, given: Entries, arms: Mapping[str, Layer]) -> str:
        if "reference" not in given:
            return next(iter(arms))
        name, address = self._value(given, "reference", str)
        if name not in arms:
            raise ConfigError(f"{address} = {name} is no arm; {did_you_mean(name, arms)}")
        return str(name)

    def _ranks(self, given: Entries) -> int:
        if "ranks" not in given:
            return 1
        ranks, address = self._value(given, "ranks", int)
        if ranks < 1:
            raise ConfigError(f"{address} = {ranks} is below 1; give the processes of one run")
        return int(ranks)

    def _named(self, given: Entries, key: str) -> Entries:
        line, node = given[key]
        found = entries(node, self._origin, f"study.{key}:")
        if not found:
            raise ConfigError(f"{self._origin}:{line}: study.{key} = {{}} names nothing; give one or more")
        for name, (name_line, _) in found.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{self._origin}:{name_line}: study.{key} = {name!r} cannot name a folder; "
                    "use letters, digits and . _ + > -, at most 100 of them"
                )
        return found

    def _group(self, name: str, line: int, node: yaml.Node) -> Group:
        inner = entries(node, self._origin, f"study.groups.{name}:")
        return Group(name, self._preset(inner), self._layer(node, f"study.groups.{name}", arm=False))

    def _preset(self, given: Entries) -> Layer:
        if PRESET not in given:
            return {}
        line, node = given[PRESET]
        address = f"{self._origin}:{line}: {PRESET}"
        return read_preset(str(from_yaml(construct(node, self._loader, address), str, address)))

    def _layer(self, node: yaml.Node, where: str, *, arm: bool) -> Layer:
        if isinstance(node, yaml.ScalarNode) and construct(node, self._loader, where) is None:
            return {}  # an arm that differs in nothing from the file
        layer = self._own(read_sections(node, self._loader, self._origin, beside=() if arm else (PRESET,)))
        for (section, name), setting in layer.items():
            if arm and (section not in _ARM_SECTIONS or name in _TUNED):
                raise ConfigError(
                    f"{setting.address} = {setting.value} would give one arm other data, another length or "
                    f"learning rate than the rest; set it outside {where}, for all of them"
                )
        return layer

    def _own(self, layer: Layer) -> Layer:
        for key in _OWN:
            if key in layer:
                setting = layer[key]
                raise ConfigError(
                    f"{setting.address} = {setting.value} is set by the study in every run; leave it out, and give "
                    "study.learning_rates, study.seeds or --output"
                )
        return layer
