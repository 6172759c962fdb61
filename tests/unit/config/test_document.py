"""YAML, line by line: what is understood, and what is told when it is not."""

from pathlib import Path

import pytest

from megatron_tlm.config.document import preset_names, read_file, read_preset, read_text
from megatron_tlm.errors import ConfigError


def value(text: str, section: str, key: str) -> object:
    return read_text(text, "run.yaml")[section, key].value


def test_every_type_is_read_as_declared() -> None:
    assert value("model: {num_layers: 4}", "model", "num_layers") == 4
    assert value("optimizer: {lr: 1}", "optimizer", "lr") == 1.0
    assert value("training: {bf16: yes}", "training", "bf16") is True
    assert value("parallel: {recompute_granularity: null}", "parallel", "recompute_granularity") is None
    assert value("data:\n  split: 969,30,1", "data", "split") == "969,30,1"


@pytest.mark.parametrize("text", ["3e-4", "3E-4", "3.0e-4", "0.0003", "'3e-4'"])
def test_a_float_may_look_like_text_to_yaml(text: str) -> None:
    assert value(f"optimizer: {{lr: {text}}}", "optimizer", "lr") == 3e-4


@pytest.mark.parametrize("text", ["0.7 a 0.3 b", "[0.7, a, 0.3, b]", "[0.7 , 'a', '0.3', b]"])
def test_a_blend_is_a_list_or_a_line(text: str) -> None:
    assert value(f"data:\n  data_path: {text}\n", "data", "data_path") == ("0.7", "a", "0.3", "b")


def test_a_path_with_a_blank_stands_in_a_list() -> None:
    assert value("data: {data_path: [my corpus]}", "data", "data_path") == ("my corpus",)


def test_an_empty_document_and_an_empty_section_say_nothing() -> None:
    assert read_text("", "run.yaml") == {}
    assert read_text("# nothing\n", "run.yaml") == {}
    assert read_text("data:\n  # data_path: corpus\n", "run.yaml") == {}


def test_settings_know_their_line() -> None:
    layer = read_text("# a run\nmodel:\n  num_layers: 4\n", "run.yaml")
    assert layer["model", "num_layers"].address == "run.yaml:3: model.num_layers"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {num_layers: '4'}", r"run.yaml:1: model.num_layers = '4' is not an integer; write 4 without quotes"),
        ("model:\n  num_layers: 4.0", r"run.yaml:2: model.num_layers = 4.0 is not an integer; write 4 without"),
        ("training: {train_iters: 1e5}", r"training.train_iters = '1e5' is not an integer; write 100000 without"),
        ("model: {num_layers: true}", r"model.num_layers = True is not an integer"),
        ("model: {num_layers: null}", r"model.num_layers = None is not an integer"),
        ("optimizer: {lr: fast}", r"optimizer.lr = 'fast' is not a finite number; write one such as 0.1 or 3e-4"),
        ("optimizer: {lr: .nan}", r"optimizer.lr = nan is not a finite number"),
        ("optimizer: {lr: .inf}", r"optimizer.lr = inf is not a finite number"),
        ("optimizer: {lr: [1]}", r"optimizer.lr = \[1\] is not a finite number"),
        ("training: {bf16: 1}", r"training.bf16 = 1 is not a switch; write true or false"),
        ("data: {split: 1}", r"data.split = 1 is not text; put it in quotes"),
        ("data: {data_path: {a: 1}}", r"data.data_path = {'a': 1} is not a list of texts"),
        ("taper: {taper_schedule: cosin}", r"is not one of uniform, cosine, .*; did you mean cosine\?"),
        ("model: {num_layer: 4}", r"run.yaml:1: model.num_layer is not a key; did you mean num_layers\?"),
        ("parallel: {tp: 2}", r"parallel.tp is not a key; write tensor_model_parallel_size under parallel:"),
        ("model: {rms_norm_eps: 2}", r"model.rms_norm_eps is not a key; write norm_epsilon under model:"),
        ("parallel: {dp: 2}", r"parallel.dp is not a key; the data degree is the number of ranks"),
        ("model:\n  num-layers: 4", r"run.yaml:2: model.num-layers is not a key; write num_layers"),
        ("optimizer: {num_layers: 4}", r"optimizer.num_layers is not a key of optimizer; .* belongs under model:"),
        ("num_layers: 4", r"run.yaml:1: num_layers is not a section; that key belongs under model:"),
        ("modle: {num_layers: 4}", r"run.yaml:1: modle is not a section; did you mean model\?"),
        ("zzz: 1", r"zzz is not a section; there are model, architecture, taper"),
        (
            "model:\n  num_layers: 4\n  num_layers: 5",
            r"run.yaml:3: num_layers appears twice, first in line 2; keep",
        ),
        ("data: {}\ndata: {}", r"run.yaml:2: data appears twice, first in line 1"),
        ("model: 4", r"run.yaml:1: model: holds '4' and not `key: value` lines; indent them below it"),
        ("- model", r"run.yaml:1: the document holds a list and not `key: value` lines"),
        ("model: {num_layers: 4", r"run.yaml:\d: this is not YAML \(.*\); mend that line"),
        ("a: 1\n---\nb: 1\n", r"this is not YAML"),
        (
            "data:\n  split: 2020-13-45",
            r"run.yaml:2: data.split = '2020-13-45' cannot be read \(month must .*; put text in",
        ),
        ("data:\n  split: 2020-01-01", r"run.yaml:2: data.split = .* is not text; put it in quotes"),
        ("model: 2020-13-45", r"run.yaml:1: model = '2020-13-45' cannot be read"),
        ("model: {num_layers: !!int x}", r"run.yaml:1: model.num_layers = 'x' cannot be read"),
        ("model: {num_layers: !!binary '*'}", r"run.yaml:1: "),
        (
            "model:\n  num_layers: 4\0",
            r"run.yaml:2: character '.x00' is none of YAML's; delete it, or give a text file",
        ),
        ("\n\nmodel: " + "[" * 2000, r"run.yaml:3: brackets or lists are nested too deep; mend that line"),
        ("model: {num_layers: " + "[" * 2000 + "]" * 2000 + "}", r"run.yaml:\d: brackets or lists are nested too deep"),
        ("model: !!python/object/apply:os.system [ls]", r"run.yaml:1: "),
        ("model: {num_layers: !!python/name:os.system ''}", r"run.yaml:1: this is not YAML \(could not determine a"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_text(text, "run.yaml")


def test_a_file_is_named_without_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("model: {num_layers: 'x'}")
    with pytest.raises(ConfigError, match=r"^my.yaml:1: model.num_layers = 'x'"):
        read_file(path)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot be read \(not UTF-8 text\); give a YAML file"):
        read_file(path)
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        read_file(tmp_path)


def test_presets_are_shipped_smallest_first() -> None:
    assert preset_names() == ("tiny", "440m", "760m", "1.3b", "3b")


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(ConfigError, match=r"--preset = 440 is not shipped; did you mean 440m\?"):
        read_preset("440")
