"""A study's file is read whole, and complained about by line and key."""

from pathlib import Path

import pytest

from megatron_tlm.config.study import read_study
from megatron_tlm.errors import ConfigError

GOOD = """\
preset: tiny
training: {train_iters: 50}
study:
  arms:
    uniform: {taper: {taper_schedule: uniform}}
    cosine:
  learning_rates: [2.0e-3, 1e-3]
  seeds: [1, 2]
"""


def study_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    study = read_study(study_of(tmp_path, GOOD))
    assert study.name == "mine"
    assert study.layer["training", "train_iters"].value == 50
    assert study.preset["model", "num_layers"].value == 4
    assert ("training", "train_iters") in study.preset
    assert list(study.arms) == ["uniform", "cosine"]
    assert study.arms["uniform"]["taper", "taper_schedule"].value == "uniform"
    assert study.arms["cosine"] == {}
    assert study.learning_rates == (0.001, 0.002)
    assert (study.seeds, study.tuning_seeds, study.reference, study.ranks) == ((1, 2), (1,), "uniform", 1)
    assert [group.name for group in study.groups] == [""]


def test_groups_have_presets_and_settings_of_their_own(tmp_path: Path) -> None:
    groups = "  groups:\n    a: {preset: 440m}\n    b: {preset: 440m-titans, training: {train_iters: 7}}\n"
    study = read_study(study_of(tmp_path, GOOD + groups + "  ranks: 2\n  reference: cosine\n  tuning_seeds: 7\n"))
    assert [group.name for group in study.groups] == ["a", "b"]
    assert study.groups[1].preset["architecture", "mixer"].value == "titans_lmm"
    assert study.groups[1].layer["training", "train_iters"].value == 7
    assert (study.ranks, study.reference, study.tuning_seeds) == (2, "cosine", (7,))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("study:", "studies:", r"mine.yaml has no study: section; give one with arms"),
        ("  seeds: [1, 2]\n", "", r"mine.yaml:3: study.seeds is not given; add it below study:"),
        ("  seeds:", "  sedes:", r"mine.yaml:8: study.sedes is not a key; did you mean seeds\?"),
        ("[1, 2]", "[1, 1]", r"mine.yaml:8: study.seeds = \[1, 1\] is empty or says a number twice; give each once"),
        ("[1, 2]", "[1, 2.5]", r"mine.yaml:8: study.seeds = 2.5 is not an integer; write"),
        ("[1, 2]", "[-1]", r"study.seeds = -1 lies outside 0 to 4294967295; give one from there"),
        ("1e-3]", "0.0]", r"study.learning_rates = 0 is not positive; give rates above 0"),
        ("    uniform:", "    a/b:", r"mine.yaml:5: study.arms = 'a/b' cannot name a folder; use letters"),
        ("    uniform:", f"    {'x' * 101}:", r"cannot name a folder; use letters, .* at most 100 of them"),
        (
            "1e-3]",
            "1e-3, 0.00100000001]",
            r"learning_rates = 0.00100000001 and 0.001 are both called 0.001; rates differ",
        ),
        (
            "{train_iters: 50}",
            "{train_iters: 50}\nlogging: {heartbeat_dir: h}",
            r"logging.heartbeat_dir = h is set by the",
        ),
        ("arms:\n", "arms: {}\n  x:\n", r"study.x is not a key"),
        ("  seeds: [1, 2]", "  seeds: 1\n  ranks: 0", r"mine.yaml:9: study.ranks = 0 is below 1; give the processes"),
        ("  seeds: [1, 2]", "  seeds: 1\n  reference: unifrom", r"study.reference = unifrom is no arm; did you mean"),
        (
            "{taper: {taper_schedule: uniform}}",
            "{training: {train_iters: 9}}",
            r"mine.yaml:5: training.train_iters = 9 would give one arm other data, another length or learning rate "
            r"than the rest; set it outside study.arms.uniform, for all of them",
        ),
        ("{taper: {taper_schedule: uniform}}", "{optimizer: {lr: 0.1}}", r"optimizer.lr = 0.1 would give one arm"),
        ("{train_iters: 50}", "{seed: 3}", r"mine.yaml:2: training.seed = 3 is set by the study in every run"),
        ("{train_iters: 50}", "{train_items: 3}", r"mine.yaml:2: training.train_items is not a key; did you mean"),
        ("preset: tiny", "preset: tinny", r"--preset = tinny is not shipped; did you mean tiny\?"),
        (GOOD, "", r"is empty; give a run's YAML with a study: section"),
        ("  seeds: [1, 2]", "  seeds: [1", r"mine.yaml:\d+: this is not YAML"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=complaint):
        read_study(study_of(tmp_path, GOOD.replace(old, new)))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"study = .*none.yaml cannot be read \(No such file"):
        read_study(tmp_path / "none.yaml")
