"""A rank says where it is, and is ended when it stands still."""

import json
import time
from pathlib import Path

import pytest

from megatron_tlm.train.survival.whereabouts import Watchdog, Whereabouts


def test_a_rank_says_where_it_is() -> None:
    place = Whereabouts(3)
    place.stage = 1
    assert str(place).startswith("rank 3 on ")
    assert str(place).endswith(", stage 1, before the first step")
    place.at("step 17")
    assert str(place).endswith(", stage 1, step 17")


def test_a_rank_that_stands_still_is_ended_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    place, ended = Whereabouts(1), []
    place.at("step 4")
    with Watchdog(place, 0.2, ended.append):
        time.sleep(0.5)
    assert ended == [1]
    told = capfd.readouterr().err
    assert "test_whereabouts.py" in told, "the line at which it stands"
    assert "stage 0, step 4 = 0 s without a sign of life, above the 0 s that --distributed-timeout-minutes" in told
    assert "step 4" in json.loads((tmp_path / "error.json").read_text())["message"]["message"]


def test_a_rank_that_gives_signs_is_left_alone() -> None:
    place, ended = Whereabouts(), []
    with Watchdog(place, 0.2, ended.append):
        for _ in range(20):
            time.sleep(0.03)
            place.alive()
    assert ended == []
