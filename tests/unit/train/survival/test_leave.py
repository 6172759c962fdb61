"""What a rank that failed says: one sentence, unless it is a fault of the package's own."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megatron_tlm.errors import DataError
from megatron_tlm.train.survival.agree import AgreedError
from megatron_tlm.train.survival.leave import leave
from megatron_tlm.train.survival.stop import LostLauncherError
from megatron_tlm.train.survival.whereabouts import Whereabouts

CASES: list[tuple[BaseException, int, str]] = [
    (DataError("a = 1 is wrong;\nmend it"), 2, "stage 0, step 7: a = 1 is wrong; mend it\n"),
    (AgreedError("rank 0 says this"), 2, ""),
    (LostLauncherError("torchrun = gone"), 1, ""),
    (RuntimeError("Connection closed by peer [1.2.3.4]"), 1, "lost its peers (Connection closed by peer [1.2.3.4])\n"),
    (RuntimeError("Timed out waiting 3000ms for recv"), 1, "a peer = silent for longer than --distributed-timeout-min"),
    (OSError(28, "No space left on device", "log/metrics.jsonl"), 1, "step 7: log/metrics.jsonl = [Errno 28] No space"),
    (torch.OutOfMemoryError("CUDA out of memory.\nMore"), 1, "exhausted (CUDA out of memory.); lower --micro-batch"),
    (KeyboardInterrupt(), 1, "step 7: interrupted\n"),
    (ValueError("a bug"), 1, "stage 0, step 7:\nValueError: a bug\n"),
]


@pytest.mark.parametrize(("error", "code", "told"), CASES, ids=lambda case: type(case).__name__)
def test_how_a_rank_leaves(
    error: BaseException,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes: list[int] = []
    record: Callable[[int], None] = codes.append
    monkeypatch.setattr(os, "_exit", record)
    word = tmp_path / "attempt_0" / "1" / "error.json"
    word.parent.mkdir(parents=True)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(word))
    place = Whereabouts(1)
    place.at("step 7")
    leave(error, place)  # type: ignore[unreachable]
    said = capsys.readouterr().err
    assert codes == [code]
    assert told in said if told else not said
    told_torchrun = json.loads(word.read_text()) if word.exists() else {"message": {"message": ""}}
    left = told_torchrun["message"]["message"]
    assert ("errorTraits" in told_torchrun) is (code == 2), "what the user has to mend is not tried again"
    assert left in (said.removeprefix("megatron-tlm: error: ").strip(), str(error), f"{place}: ValueError: a bug", "")
    assert bool(left) is ("closed by peer" not in str(error))
    assert ("Error: a bug" in said) or said.count("\n") <= 1


def test_of_those_that_only_suffer_one_a_node_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: None)
    lost = RuntimeError("Connection closed by peer [1.2.3.4]")
    for rank, error in enumerate((lost, lost, RuntimeError("Timed out waiting"), ValueError("a bug"))):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        leave(error, Whereabouts(rank))  # type: ignore[unreachable]
    said = capsys.readouterr().err
    assert "rank 0 on " in said
    assert "rank 1 on " not in said
    assert "rank 2 on " not in said
    assert "ValueError: a bug" in said
