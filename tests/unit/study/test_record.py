"""A study's folder knows its study: what grows is welcome, what changes is refused by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import ConfigError
from megatron_tlm.study import record
from megatron_tlm.study.record import check_study, open_study
from tests.unit.study.studies import ARMS, design

EARLY = {"early": {"taper": {"taper_schedule": "wider-early"}}}


def test_the_same_study_is_opened_as_often_as_one_likes(tmp_path: Path) -> None:
    assert open_study(design(tmp_path)) == []
    assert open_study(design(tmp_path)) == []


def test_seeds_rates_and_arms_may_be_added(tmp_path: Path) -> None:
    open_study(design(tmp_path))
    grown = {"seeds": [1, 2, 5], "learning_rates": [0.001, 0.002, 0.004], "arms": {**ARMS, **EARLY}}
    assert open_study(design(tmp_path, **grown)) == ["learning_rates 0.001", "seeds 5", "arm early"]
    assert open_study(design(tmp_path, **grown)) == []
    with pytest.raises(
        ConfigError, match=r"has changed since it began \(.*seeds no longer has 5; there is no arm early"
    ):
        open_study(design(tmp_path))


def test_a_study_goes_on_with_a_version_that_has_more_keys_where_they_have_their_defaults(tmp_path: Path) -> None:
    open_study(design(tmp_path))
    path = tmp_path / "out" / record.STUDY_NAME
    older = json.loads(path.read_text())
    for arm in older["arms"].values():
        del arm["resilience"], arm["training"]["full_validation"], arm["data"]["eval_data"]
    path.write_text(json.dumps(older))
    assert open_study(design(tmp_path)) == []
    with pytest.raises(ConfigError, match=r"uniform: training.full_validation False is now True"):
        open_study(design(tmp_path, base={"training": {"train_iters": 6, "eval_iters": 1, "full_validation": True}}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"base": {"training": {"train_iters": 7, "eval_iters": 1}}}, r"uniform: training.train_iters 6 is now 7"),
        (
            {"arms": {**ARMS, "cosine": {"taper": {"taper_start": 1.25, "taper_end": 0.75}}}},
            r"cosine: taper.taper_start",
        ),
        ({"reference": "cosine"}, r"\(reference uniform is now cosine\)"),
        ({"ranks": 2}, r"ranks 1 is now 2"),
        ({"base": {"optimizer": {"lr": 1e-3, "min_lr": 2e-4}}}, r"optimizer.min_lr 0.1 of lr is now 0.2 of lr"),
    ],
)
def test_what_changed_is_refused_by_name(tmp_path: Path, change: dict[str, object], told: str) -> None:
    open_study(design(tmp_path))
    with pytest.raises(ConfigError, match=told):
        open_study(design(tmp_path, **change))


def test_other_tokens_under_the_same_name_are_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["one", "one", "other"])
    monkeypatch.setattr(record, "corpus_digests", lambda data: {"corpus": next(digests)})
    open_study(design(tmp_path))
    open_study(design(tmp_path))
    with pytest.raises(ConfigError, match=r"data.corpus one is now other"):
        open_study(design(tmp_path))


def test_results_are_told_of_text_that_has_changed_or_gone(tmp_path: Path) -> None:
    write_pair(tmp_path / "corpus", 3)
    base = {"data": {"data_path": [str(tmp_path / "corpus")], "mock_data": False}}
    assert check_study(design(tmp_path, base=base)) == []
    open_study(design(tmp_path, base=base))
    assert check_study(design(tmp_path, base=base)) == []
    write_pair(tmp_path / "corpus", 4)
    (told,) = check_study(design(tmp_path, base=base))
    assert re.fullmatch(rf"data\.{re.escape(str(tmp_path))}/corpus [0-9a-f]+ is now [0-9a-f]+", told)
    (tmp_path / "corpus.idx").unlink()
    (told,) = check_study(design(tmp_path, base=base))
    assert told == f"{tmp_path}/corpus.idx does not exist"
    with pytest.raises(ConfigError, match=r"ranks 1 is now 2"):
        check_study(design(tmp_path, base=base, ranks=2))


def write_pair(prefix: Path, token: int) -> None:
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([1, 2, token]))


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    open_study(design(tmp_path))
    (design(tmp_path).folder / record.STUDY_NAME).write_text("{")
    with pytest.raises(ConfigError, match=r"study.json = 1 bytes that are no JSON .*; put back a copy"):
        open_study(design(tmp_path))
    (design(tmp_path).folder / record.STUDY_NAME).write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"study.json = 100000 bytes that are no JSON .*; put back a copy"):
        open_study(design(tmp_path))
    (design(tmp_path).folder / record.STUDY_NAME).write_text('{"learning_rates": [1], "seeds": {}, "reference": "a"}')
    with pytest.raises(
        ConfigError,
        match=r"= 5 of 7 keys are missing or of another kind \(seeds, tuning_seeds, ranks, data, arms\); put",
    ):
        open_study(design(tmp_path))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    plan = design(tmp_path)
    plan.folder.parent.mkdir(parents=True, exist_ok=True)
    plan.folder.write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--output = .* cannot hold the study \((File exists|Not a dir.*)\); give"):
        open_study(plan)
