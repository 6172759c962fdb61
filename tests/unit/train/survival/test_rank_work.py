"""What ranks are about to do, compared. Whole runs whose nodes differ are in tests/e2e/test_network_faults.py."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.train.survival import rank_work
from megatron_tlm.train.survival.rank_work import check_work, unshared

WORK = {
    "node": "a",
    "widths and stages": "w",
    "parallel.deepspeed_config": None,
    "checkpoint to go on from": "step-4 x",
    "data": {"data.seed": 1, "data.corpus_0": "1" * 32},
}


def other(**changes: Any) -> dict[str, Any]:
    return WORK | {"node": "b"} | {key.replace("_", " "): value for key, value in changes.items()}


def test_ranks_with_the_same_work_pass() -> None:
    assert check_work([WORK, other(), None], ["corpus"]) is None
    assert check_work([None, other()], []) is None


def test_another_plan_is_told() -> None:
    assert check_work([WORK, other(widths_and_stages="v")], []) == (
        "widths and stages = w on a, v on b; give every node the same files"
    )


def test_another_checkpoint_is_told() -> None:
    told = check_work([WORK, other(checkpoint_to_go_on_from=None)], [])
    assert told is not None
    assert told.startswith("checkpoint to go on from = step-4 x on a, None on b; let all nodes see the same --load")


def test_other_data_is_told_by_its_path() -> None:
    told = check_work([WORK, other(data=WORK["data"] | {"data.corpus_0": "2" * 32})], ["/data/corpus"])  # type: ignore[operator]
    assert told == (
        "data = tokens of /data/corpus with fingerprint 11111111 on a, 22222222 on b; copy the .bin/.idx pair anew, "
        "`megatron-tlm data verify` prints the hash of one"
    )
    told = check_work([WORK, other(data=WORK["data"] | {"data.seed": 2})], [])  # type: ignore[operator]
    assert told == "data.seed = 1 on a, 2 on b; give every node the same files"


def on_two_ranks(act: Callable[[Meeting], Any]) -> list[Any]:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: act(Meeting(rank, 2, timedelta(seconds=20), store)), range(2)))


def test_a_shared_folder_is_seen_by_all_and_left_clean(tmp_path: Path) -> None:
    assert on_two_ranks(lambda meeting: unshared(meeting, tmp_path, "checkpoint.save")) == [None, None]
    assert list(tmp_path.iterdir()) == []


def test_folders_of_one_name_on_two_disks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_work, "SEEN_SECONDS", 0.1)
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    told = on_two_ranks(lambda meeting: unshared(meeting, tmp_path / str(meeting.rank), "checkpoint.save"))
    assert len(set(told)) == 1
    assert told[0].startswith(f"checkpoint.save = {tmp_path}/0 on ")
    assert told[0].endswith("; give a folder on a file system that all nodes share")
    assert list((tmp_path / "0").iterdir()) == []
