"""A printed configuration reads back as itself, whatever its values."""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.config.document import preset_names, read_preset
from megatron_tlm.config.dump import as_mapping, dump, dump_differences, from_mapping, parse
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config, fields_of, sections
from megatron_tlm.errors import ConfigError

TINY = build([read_preset("tiny")])
# What YAML 1.1 likes to read as something else, beside anything printable.
TEXT = st.sampled_from(["no", "null", "1e5", "0x10", "a: b", "# c", "'", "~", "1:30", " x ", "é\n"]) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
)
RATE = st.floats(1e-30, 1.0)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_printing(name: str) -> None:
    config = build([read_preset(name)])
    assert parse(dump(config)) == config


@given(paths=st.lists(TEXT, max_size=4), save=st.none() | TEXT, rate=RATE, epsilon=RATE, seed=st.integers(0, 2**32 - 1))
def test_any_configuration_survives_printing(
    paths: list[str], save: str | None, rate: float, epsilon: float, seed: int
) -> None:
    config = replace(
        TINY,
        data=replace(TINY.data, data_path=tuple(paths)),
        checkpoint=replace(TINY.checkpoint, save=save),
        optimizer=replace(TINY.optimizer, lr=rate, min_lr=0.0, adam_eps=epsilon),
        training=replace(TINY.training, seed=seed),
    )
    assert parse(dump(config)) == config
    assert parse(dump_differences(config)) == config
    assert from_mapping(json.loads(json.dumps(as_mapping(config))), "manifest") == config


def test_printing_shows_every_key() -> None:
    text = dump(TINY)
    assert all(f"  {name}:" in text for section in sections() for name in fields_of(section))


def test_what_is_by_default_is_left_out() -> None:
    text = dump_differences(TINY)
    assert "num_layers: 4" in text
    assert "lr: 0.003" in text
    assert "clip_grad" not in text
    assert "checkpoint:" not in text


def test_the_taper_is_told_whole_by_default_too() -> None:
    told = yaml.safe_load(dump_differences(TINY))["taper"]
    assert list(told) == list(fields_of("taper"))
    assert (told["taper_schedule"], told["taper_start"], told["taper_end"]) == ("cosine", 1.5, 0.5)


def test_a_mapping_of_another_version_is_told() -> None:
    mapping = as_mapping(TINY) | {"extra": {"a": 1}}
    with pytest.raises(ConfigError, match=r"manifest.json:\d+: extra is not a section"):
        from_mapping(mapping, "manifest.json")


def test_a_mapping_is_complete() -> None:
    assert isinstance(TINY, Config)
    assert list(as_mapping(TINY)) == list(sections())
