"""What a study was when it began, kept in its folder: a file that changed since is refused, one that grew is not."""

import json
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, DataConfig, fields_of
from megatron_tlm.data.blend import parse_blend
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.errors import ConfigError, TlmError
from megatron_tlm.study.design import Design
from megatron_tlm.study.runs import replace_text

STUDY_NAME = "study.json"
_KINDS = {
    "learning_rates": list, "seeds": list, "tuning_seeds": list, "reference": str, "ranks": int, "data": dict,
    "arms": dict,
}  # fmt: skip
_GROWING = ("learning_rates", "seeds", "tuning_seeds")
# Where a run lies and what it tells: a folder may be moved.
_PLACES = (("checkpoint", "save"), ("checkpoint", "load"), ("logging", "log_dir"))


def open_study(design: Design) -> list[str]:
    """Begins the study in its folder, or checks that it is the one that began there; what has been added since.

    ConfigError naming everything that has changed.
    """
    path, now = design.folder / STUDY_NAME, described(design)
    if not path.exists():
        try:
            design.folder.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps(now, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(
                f"--output = {design.folder} cannot hold the study ({error.strerror}); give another folder"
            ) from error
        return []
    added = _added(path, _read(path), now)
    if added:
        replace_text(path, json.dumps(now, indent=1) + "\n")
    return added


def check_study(design: Design) -> list[str]:
    """What of its text is no longer as it was, or cannot be read here: the study's runs were on what it was.

    ConfigError where another study than this one began in the folder, or the record of it is damaged.
    """
    path = design.folder / STUDY_NAME
    if not path.exists():
        return []
    before = _read(path)
    _added(path, before, _settings(design) | {"data": before["data"]})
    try:
        return differences(before["data"], _digests(design), "data.")
    except TlmError as error:
        return [str(error).partition("; ")[0]]


def _added(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes, added = compare(before, now)
    if changes:
        raise ConfigError(
            f"{path} = a study that has changed since it began ({'; '.join(changes)}); undo that, or give --output of "
            "a new folder"
        )
    return added


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(what is no longer as it was, what has been added): seeds, rates and arms may be added."""
    changes, added = [], []
    for name in _GROWING:
        changes += [f"{name} no longer has {value:g}" for value in before[name] if value not in now[name]]
        added += [f"{name} {value:g}" for value in now[name] if value not in before[name]]
    for arm in dict.fromkeys((*before["arms"], *now["arms"])):
        if arm not in now["arms"]:
            changes.append(f"there is no arm {arm} any more")
        elif arm not in before["arms"]:
            added.append(f"arm {arm}")
        else:
            changes += differences(_filled(before["arms"][arm], now["arms"][arm]), now["arms"][arm], f"{arm}: ")
    rest = [name for name in before if name not in (*_GROWING, "arms")]
    changes += differences({name: before[name] for name in rest}, {name: now[name] for name in rest})
    return changes, added


def _filled(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the defaults of keys that no version had when it was made: by those its runs went."""
    filled = dict(before)
    for section, keys in now.items():
        own = before.get(section, {})
        defaults = {name: item.default for name, item in fields_of(section).items() if name in keys}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
        new = {name: value for name, value in plain.items() if value is not MISSING and name not in own}
        filled[section] = {**own, **new}
    return filled


def described(design: Design) -> dict[str, Any]:
    """A study in plain values."""
    return _settings(design) | {"data": _digests(design)}


def _settings(design: Design) -> dict[str, Any]:
    """What its file alone says of it."""
    file = design.file
    arms = {"/".join(filter(None, pair)): _arm_facts(design.config(design.example(*pair))) for pair in design.pairs}
    return {
        "learning_rates": list(file.learning_rates),
        "seeds": list(file.seeds),
        "tuning_seeds": list(file.tuning_seeds),
        "reference": file.reference,
        "ranks": file.ranks,
        "arms": arms,
    }


def _digests(design: Design) -> dict[str, str]:
    """Of every corpus of every group, by its prefix."""
    found: dict[str, str] = {}
    for group in design.file.groups:  # whose arms share their data
        found |= corpus_digests(design.config(design.example(group.name, design.file.reference)).data)
    return dict(sorted(found.items()))


def corpus_digests(data: DataConfig) -> dict[str, str]:
    """Each corpus by its prefix, as a value that changes with its tokens."""
    found = (data.data_path, data.train_data_path, data.valid_data_path)
    prefixes = {prefix for words in found if words for prefix in parse_blend(words).prefixes}
    return {prefix: IndexedDataset(prefix).digest for prefix in sorted(prefixes)}


def run_facts(config: Config) -> dict[str, Any]:
    """A configuration in plain values, places left out."""
    mapping = as_mapping(config)
    for section, key in _PLACES:
        del mapping[section][key]
    return mapping


def _arm_facts(config: Config) -> dict[str, Any]:
    """What all runs of an arm share."""
    mapping = run_facts(config)
    optimizer = mapping["optimizer"]
    optimizer["min_lr"] = f"{optimizer['min_lr'] / optimizer.pop('lr'):.6g} of lr"
    del mapping["training"]["seed"]
    return mapping


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two trees of plain values, in words."""
    told = []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            told += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            told.append(f"{prefix}{key} {old} is now {new}")
    return told


def folder_of(name: str) -> Path:
    """Where a study goes that is told no other place."""
    return Path("runs") / name


def _read(path: Path) -> dict[str, Any]:
    way_out = "put back a copy, or give --output of a new folder"
    try:
        before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} = {path.stat().st_size} bytes that are no JSON ({error}); {way_out}") from error
    damaged = [
        name for name, kind in _KINDS.items() if not isinstance(before, dict) or not isinstance(before.get(name), kind)
    ]
    if damaged:
        raise ConfigError(
            f"{path} = {len(damaged)} of {len(_KINDS)} keys are missing or of another kind ({', '.join(damaged)}); "
            f"{way_out}"
        )
    return before
