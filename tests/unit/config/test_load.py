"""Preset, YAML and flags into one configuration, each outweighing the one before."""

from pathlib import Path

import pytest

from megatron_tlm.config.flags import Flags
from megatron_tlm.config.load import build, load, load_file
from megatron_tlm.config.schema import Config
from megatron_tlm.config.values import Setting
from megatron_tlm.errors import ConfigError

MODEL = "model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32}\n"


def resolve(
    yaml: str | None, folder: Path, *, preset: str | None = None, flags: dict[tuple[str, str], object] | None = None
) -> Config:
    path = folder / "run.yaml"
    if yaml is not None:
        path.write_text(yaml)
    layer = {key: Setting(value, f"--{key[1]}") for key, value in (flags or {}).items()}
    return load(Flags(preset, str(path) if yaml is not None else None, layer, (), frozenset(), ()))


def test_flags_outweigh_the_file_and_the_file_the_preset(tmp_path: Path) -> None:
    config = resolve(
        "model: {num_layers: 6, hidden_size: 256}",
        tmp_path,
        preset="tiny",
        flags={("model", "num_layers"): 8},
    )
    assert (config.model.num_layers, config.model.hidden_size, config.model.num_attention_heads) == (8, 256, 4)
    assert config.training.global_batch_size == 16


def test_a_file_alone_is_enough(tmp_path: Path) -> None:
    config = resolve(MODEL, tmp_path)
    assert config == load_file(tmp_path / "run.yaml")
    assert config.optimizer.lr == 3e-4


def test_a_stronger_source_takes_back_the_other_way_to_say_the_same(tmp_path: Path) -> None:
    config = resolve("training: {train_samples: 3200}", tmp_path, preset="tiny")
    assert (config.training.train_iters, config.training.train_samples) == (None, 3200)
    config = resolve(None, tmp_path, preset="440m", flags={("optimizer", "lr_warmup_iters"): 7})
    assert (config.optimizer.lr_warmup_fraction, config.optimizer.lr_warmup_iters) == (None, 7)


def test_both_ways_in_one_source_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train_iters = 5 and train_samples = 80 both set the length; give one"):
        resolve("training: {train_iters: 5, train_samples: 80}", tmp_path, preset="tiny")


def test_every_missing_key_is_named_with_its_flag() -> None:
    with pytest.raises(
        ConfigError,
        match=r"model.num_attention_heads, model.seq_length are not given; give --num-attention-heads --seq-length, a "
        r"--config FILE, or a --preset \(tiny, ",
    ):
        build([{("model", "num_layers"): Setting(4, "a"), ("model", "hidden_size"): Setting(64, "b")}])


def test_a_section_checks_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.hidden_size = 65 is not a multiple of num_attention_heads = 4"):
        resolve(MODEL.replace("64", "65"), tmp_path)
