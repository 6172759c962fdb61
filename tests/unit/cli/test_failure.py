"""A mistake that one node alone makes reaches the others, whose ranks would wait for it."""

from pathlib import Path

import pytest

from megatron_tlm.cli.failure import report, words_for_other_nodes
from megatron_tlm.comm import meeting
from megatron_tlm.comm.torchrun import ended_for_good
from megatron_tlm.errors import ConfigError, DataError

SENTENCE = "run.yaml = no such file; give another"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0", "RANK": "2", "WORLD_SIZE": "4"}, [(SENTENCE, 2, 4)]),
        # One rank a node is enough, and a node on its own has nobody to tell.
        ({"GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}, []),
        ({"GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "4"}, []),
        ({}, []),
    ],
)
def test_the_first_rank_of_a_node_tells_the_others(
    environment: dict[str, str], told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUP_WORLD_SIZE", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    left: list[tuple[object, ...]] = []
    monkeypatch.setattr(meeting, "leave_early_word", lambda *words: left.append(words))
    with pytest.raises(ConfigError, match="no such file"), words_for_other_nodes():
        raise ConfigError(SENTENCE.replace("= ", "=\n"))
    assert left == told


def test_a_fault_that_the_first_start_did_not_have_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun counts: a disk that a node mounts late, when it comes back, is there at the next start."""
    ended = []
    for count in range(2):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"attempt_{count}" / "0" / "error.json"))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        report(DataError("data_path = corpus has no corpus.idx; give another"))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count + 1))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"attempt_{count + 1}" / "0" / "error.json"))
        ended.append(ended_for_good() is not None)
    assert ended == [True, False]


def test_the_first_rank_of_a_node_to_fail_tells_it_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun ends the others at once, rank 0 among them, which may not have come to a word."""
    said = []
    (tmp_path / "attempt_0").mkdir()
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0" / rank / "error.json"))
        report(ConfigError(SENTENCE))
        said.append(capsys.readouterr().err)
    assert said == [f"megatron-tlm: error: {SENTENCE}\n", ""]
