"""A run and its data: what it is told, what a checkpoint keeps of it, and what a resumed run is held to."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_tlm.config.schema import Config
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from tests.equivalence.launching import Launch, launch, losses_of, metrics_of, run_config
from tests.equivalence.training import VOCAB


def write(prefix: Path, seed: int, documents: int = 60) -> str:
    chance = np.random.RandomState(seed)
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(documents):
            writer.add_document(chance.randint(0, VOCAB, chance.randint(1, 60)))
    return str(prefix)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("corpora")
    return write(folder / "a", 1), write(folder / "b", 2)


def blended(folder: Path, corpora: tuple[str, str], **changes: Any) -> Config:
    data = {"data_path": ("2", corpora[0], "1", corpora[1]), "split": "80,20"} | changes.pop("data", {})
    config = run_config(folder, **changes)
    return replace(config, data=replace(config.data, mock_data=False, **data))


@pytest.fixture(scope="module")
def half(corpora: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Launch]:
    """Five of ten steps."""
    config = blended(tmp_path_factory.mktemp("half"), corpora, exit_interval=5)
    return config, launch(config, 2)


def resume(half: Config, folder: Path, corpora: tuple[str, str], **changes: Any) -> tuple[Config, Launch]:
    config = blended(folder, corpora, load=half.checkpoint.save, **changes)
    return config, launch(config, 2)


def test_epochs_and_tokens_are_told_by_corpus(half: tuple[Config, Launch], corpora: tuple[str, str]) -> None:
    config, ended = half
    assert ended.codes == [0, 0], ended.complained
    for prefix in corpora:
        assert f"data: {prefix}: " in ended.said
    assert "epochs" in ended.said
    assert "data wait" in ended.said
    counted = [record["tokens_by_source"] for record in metrics_of(config) if "tokens_by_source" in record]
    tokens = [record["tokens"] for record in metrics_of(config) if "tokens_by_source" in record]
    assert [sum(count.values()) for count in counted] == tokens
    assert counted[-1][corpora[0]] == pytest.approx(2 / 3 * tokens[-1], rel=0.1)


def test_a_resumed_run_reads_on(half: tuple[Config, Launch], corpora: tuple[str, str], tmp_path: Path) -> None:
    whole = blended(tmp_path / "whole", corpora, data={"data_cache_path": str(tmp_path / "cache")})
    assert launch(whole, 2).codes == [0, 0]
    rest, ended = resume(half[0], tmp_path / "rest", corpora, data={"data_cache_path": str(tmp_path / "cache")})
    assert ended.codes == [0, 0], ended.complained
    assert losses_of(rest) == losses_of(whole)[5:]


def test_a_longer_run_reads_on_as_well(half: tuple[Config, Launch], corpora: tuple[str, str], tmp_path: Path) -> None:
    whole = blended(tmp_path / "whole", corpora)
    assert launch(whole, 2).codes == [0, 0]
    longer, ended = resume(half[0], tmp_path / "longer", corpora, train_iters=200, exit_interval=10, lr_decay_iters=10)
    assert ended.codes == [0, 0], ended.complained
    read = [record["tokens_by_source"] for record in metrics_of(longer) if "tokens_by_source" in record]
    assert read == [record["tokens_by_source"] for record in metrics_of(whole) if "tokens_by_source" in record][2:]
    assert losses_of(longer)[0] == losses_of(whole)[5]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"seed": 4321}, "training.seed 1234 is now 4321"),
    ({"data": {"split": "90,10"}}, "data.split 80,20 is now 90,10"),
    ({"weights": ("1", "1")}, "the weights of the blend 0.666666666667 0.333333333333 is now 0.5 0.5"),
    ({"second": 3}, r"corpus 2 \(.*other\) holds other tokens"),
]


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=["seed", "split", "weights", "tokens"])
def test_changed_data_are_refused_by_name(
    half: tuple[Config, Launch], corpora: tuple[str, str], tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    change = dict(change)
    first, second = change.pop("weights", ("2", "1"))
    paths = (corpora[0], write(tmp_path / "other", change.pop("second")) if "second" in change else corpora[1])
    data = {"data_path": (first, paths[0], second, paths[1])} | change.pop("data", {})
    _, refused = resume(half[0], tmp_path / "refused", corpora, data=data, **change)
    assert refused.codes == [2, 2]
    pattern = f"data = other than those of .*{told}.*--allow-data-change"
    assert any(re.search(pattern, line) for line in refused.complained.splitlines()), refused.complained
    _, allowed = resume(half[0], tmp_path / "allowed", corpora, data=data, allow_data_change=True, **change)
    assert allowed.codes == [0, 0], allowed.complained
    assert "data changed, as allowed: " in allowed.said


def test_a_run_goes_on_without_a_validation_split(corpora: tuple[str, str], tmp_path: Path) -> None:
    config = blended(tmp_path, corpora, data={"split": "100"}, exit_interval=5)
    ended = launch(config, 2)
    assert ended.codes == [0, 0], ended.complained
    assert ended.said.count("no valid samples of it: ") == 2
    assert "validation at step" not in ended.said
