"""What a run of two stages says of them: times that add up, waiting where the work is not, nothing changed by it."""

import json
from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.plan.measured import read_scalars
from megatron_tlm.train import train
from tests.equivalence.launching import launch, losses_of, run_config

TWO_STAGES = {"pipeline_model_parallel_size": 2}


def test_a_run_logs_where_its_stages_spend_their_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # All layers but a mixer on the first stage: the last one has to wait.
    config = run_config(tmp_path, save=None, train_iters=6, micro_batch_size=1, pipeline_cuts=("head",), **TWO_STAGES)
    ended = launch(config, 2)
    assert ended.codes == [0, 0], ended.complained
    records = [json.loads(line) for line in (tmp_path / "log/metrics.jsonl").read_text().splitlines()]
    measured = {record["step"]: read_scalars(record) for record in records if "loss" in record}
    assert [step for step, times in measured.items() if times] == [2, 4, 6]
    assert [times.steps for times in measured.values() if times] == [1, 2, 2]
    for step, times in measured.items():
        if times is None:
            continue
        assert (times.micro_batches, times.units) == (4, (7, 1))
        first, last = times.stages
        # A later stage may be there before the first, which logs between steps, and wait for it.
        assert 0 < first.load + first.compute + first.communication + first.wait <= times.seconds * 1.001
        if times.steps == 2:
            taken = sum(r["seconds"] for r in records if "loss" in r and step - 2 < r["step"] <= step) / 2
            assert times.seconds + first.reduce + first.update < taken
        assert first.compute > last.compute
        assert times.bubble(0) < times.bubble(1)
        assert last.wait > first.wait
    assert ended.said.count("stages: compute ") == 3
    assert "(planned " in ended.said
    board = list((tmp_path / "log/tensorboard").glob("events*"))
    assert board
    assert b"stage-wait/1" in board[0].read_bytes()
    assert main(["plan", "--from-run", str(tmp_path / "log"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [2, 6]
    assert told["bubble"]["measured"] > 0.4
    assert told["replan"]["saving"] > 0.01
    assert told["replan"]["first_units"][1] != "head"


def nobody_looks_on(rank: int) -> None:
    train.build_watchers = lambda *about: ()


def test_looking_on_changes_nothing(tmp_path: Path) -> None:
    seen = run_config(tmp_path / "a", save=None, train_iters=4, **TWO_STAGES)
    unseen = run_config(tmp_path / "b", save=None, train_iters=4, **TWO_STAGES)
    assert launch(seen, 2).said.count("stages: ") == 2
    assert launch(unseen, 2, before=nobody_looks_on).said.count("stages: ") == 0
    assert losses_of(seen) == losses_of(unseen)
