"""Preset, YAML and flags into one frozen configuration; each source outweighs the one before it."""

from collections.abc import Iterable
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from megatron_tlm.config.document import preset_names, read_file, read_preset
from megatron_tlm.config.flags import Flags, flag_name
from megatron_tlm.config.megatron import LENGTHS
from megatron_tlm.config.schema import Config, fields_of, sections
from megatron_tlm.config.values import Layer, Setting
from megatron_tlm.errors import ConfigError

# Two ways to say one thing: a stronger source that gives one takes back the other of a weaker source.
_EXCLUSIVE = (
    (("training", "train_iters"), ("training", "train_samples")),
    (("optimizer", "lr_warmup_iters"), ("optimizer", "lr_warmup_fraction")),
)


def load(flags: Flags) -> Config:
    """The configuration that a command line asks for, each value checked where it was written."""
    layers = _layers(flags)
    config = build([*layers, _lengths(flags, merge(layers))])
    _check_habits(flags, config)
    return config


def notes(flags: Flags, config: Config) -> tuple[str, ...]:
    """What to tell a person about a configuration that `load` made of these flags, a sentence each."""
    told = list(flags.notes)
    parallel, taper = config.parallel, config.taper
    if parallel.sequence_parallel and parallel.tensor_model_parallel_size == 1:
        told.append("--sequence-parallel has no effect: tensor_model_parallel_size = 1 leaves nothing to split over")
    if not any(section == "taper" for section, _ in merge(_layers(flags))):
        told.append(
            f"MLP widths taper by default, {taper.taper_schedule} from {taper.taper_start:g} to {taper.taper_end:g} of "
            "their mean; give --taper-schedule uniform for a plain model"
        )
    return tuple(told)


def _layers(flags: Flags) -> list[Layer]:
    """What preset, file and command line say, in this order."""
    layers = [read_preset(flags.preset)] if flags.preset is not None else []
    layers += [read_file(Path(flags.config))] if flags.config is not None else []
    return [*layers, flags.layer]


def load_file(path: Path) -> Config:
    """The configuration of one YAML file."""
    return build([read_file(path)])


def merge(layers: Iterable[Layer]) -> Layer:
    """One layer of many, the last one weighing most."""
    merged: Layer = {}
    for layer in layers:
        for pair in _EXCLUSIVE:
            for one, other in (pair, pair[::-1]):
                if one in layer and layer[one].value is not None and other not in layer:
                    merged.pop(other, None)
        merged |= layer
    return merged


def build(layers: Iterable[Layer]) -> Config:
    """The configuration of layered settings. ConfigError names every required key that none of them gives."""
    settings = merge(layers)
    missing = [key for key in _required() if key not in settings]
    if missing:
        names = ", ".join(".".join(key) for key in missing)
        flags = " ".join(flag_name(name) for _, name in missing)
        raise ConfigError(
            f"{names} {'is' if len(missing) == 1 else 'are'} not given; give {flags}, a --config FILE, "
            f"or a --preset ({', '.join(preset_names())})"
        )
    given: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for (section, name), setting in settings.items():
        given[section][name] = setting.value
    return Config(**{section: kind(**given[section]) for section, kind in sections().items()})


def _required() -> list[tuple[str, str]]:
    return [
        (section, name)
        for section in sections()
        for name, item in fields_of(section).items()
        if item.default is MISSING and item.default_factory is MISSING
    ]


def _lengths(flags: Flags, settings: Layer) -> Layer:
    """Megatron's lengths in samples and tokens as steps; a sample is seq_length tokens, a step a global batch."""
    layer: Layer = {}
    for flag, count in flags.lengths:
        section, name, unit = LENGTHS[flag]
        _refuse_twice(flags, flag, count, (section, name))
        samples = count // _known(settings, "model", "seq_length", flag, count) if unit == "tokens" else count
        steps = name != "train_samples"
        value = samples // _known(settings, "training", "global_batch_size", flag, count) if steps else samples
        layer[section, name] = Setting(value, flag)
    return layer


def _refuse_twice(flags: Flags, flag: str, count: int, key: tuple[str, str]) -> None:
    """ConfigError where the command line sets a length, or what excludes it, a second time."""
    rivals = {key, *(other for pair in _EXCLUSIVE if key in pair for other in pair)}
    for rival in rivals & set(flags.layer):
        other = flags.layer[rival]
        raise ConfigError(
            f"{flag} = {count} and {other.address} = {other.value} both set {'.'.join(key)}; give one of them"
        )


def _known(settings: Layer, section: str, name: str, flag: str, count: int) -> int:
    value: Any = settings[section, name].value if (section, name) in settings else None
    if value is None:
        raise ConfigError(f"{flag} = {count} needs {section}.{name} to become steps; give {flag_name(name)}")
    return int(value)


def _check_habits(flags: Flags, config: Config) -> None:
    """ConfigError for a granted Megatron flag that another setting contradicts."""
    stage, stages = config.parallel.zero_stage, config.parallel.pipeline_model_parallel_size
    if "--use-distributed-optimizer" in flags.settled and stage == 0:
        raise ConfigError(
            f"--use-distributed-optimizer asks for ZeRO stage 1 and parallel.zero_stage = {stage} shards nothing; "
            "drop one of them"
        )
    if "--no-pipeline-parallel" in flags.settled and stages > 1:
        raise ConfigError(
            f"--no-pipeline-parallel asks for 1 stage and parallel.pipeline_model_parallel_size = {stages}; "
            "drop one of them"
        )
    if "--group-query-attention" in flags.settled and config.model.num_query_groups is None:
        raise ConfigError(
            "--group-query-attention leaves model.num_query_groups open; give --num-query-groups, a divisor of "
            f"num_attention_heads = {config.model.num_attention_heads}"
        )
