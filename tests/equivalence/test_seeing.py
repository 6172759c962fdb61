"""What a launched run shows of itself: signs of life, times and memory of all ranks, its history, a page."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_tlm.model.stage import Stage
from megatron_tlm.report.read import read_run
from megatron_tlm.report.run import run_page
from megatron_tlm.train.logs.heartbeat import Heartbeat, Phase, heartbeat_file
from tests.equivalence.launching import launch, run_config


def heartbeat(folder: Path, rank: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(heartbeat_file(folder / "log" / "heartbeats", rank).read_text())
    return told


def note_phases(folder: Path, rank: int) -> None:
    """Has this process write down every phase that it tells of."""
    told, beat = folder / f"phases-{rank}", Heartbeat.beat

    def noting(self: Heartbeat, phase: Phase, step: int | None = None) -> None:
        with told.open("a") as file:
            file.write(f"{phase}\n")
        beat(self, phase, step)

    Heartbeat.beat = noting  # type: ignore[method-assign]


def test_a_run_shows_what_it_does(tmp_path: Path) -> None:
    config = run_config(tmp_path, train_iters=4, eval_interval=2, save_interval=4, tensor_model_parallel_size=2)
    result = launch(config, 2, before=lambda rank: note_phases(tmp_path, rank))
    assert result.codes == [0, 0], result.complained
    for rank in range(2):
        told = heartbeat(tmp_path, rank)
        assert (told["rank"], told["phase"], told["step"]) == (rank, "done", 4)
        phases = (tmp_path / f"phases-{rank}").read_text().split()
        assert list(dict.fromkeys(phases)) == ["starting", "training", "evaluating", "saving", "done"]
    run = read_run(tmp_path / "log")
    for name in ("forward-compute-time-max", "data-wait-time-max", "straggler-ratio", "mem-rss-bytes"):
        assert list(run.curve(name).xs) == [2, 4], "at the log interval"
        assert all(value > 0 for value in run.curve(name).ys)
    assert max(run.curve("forward-compute-time-max").ys) < max(run.curve("seconds").ys)
    assert [event["event"] for event in run.events] == ["start", "checkpoint", "finish"]
    assert run.start["layout"] == {"tensor": 2, "pipe": 1, "data": 1}
    assert "100 % of 4" in run_page(run, run.written)


def test_a_rank_that_fails_says_so_and_the_page_too(tmp_path: Path) -> None:
    config = run_config(tmp_path, save=None, train_iters=4)

    def break_third_step(rank: int) -> None:
        from megatron_tlm.train.engines.zero import ZeroEngine

        step, taken = ZeroEngine.train_step, iter(range(9))

        def broken(*args: Any) -> Any:
            if next(taken) == 2 and rank == 0:
                raise OSError(5, "Input/output error", "some-file")
            return step(*args)

        ZeroEngine.train_step = broken  # type: ignore[method-assign]

    result = launch(config, 2, before=break_third_step)
    assert 0 not in result.codes
    told = heartbeat(tmp_path, 0)
    assert (told["phase"], told["step"]) == ("failed", 2)
    ending = read_run(tmp_path / "log").ending
    assert ending is not None
    assert ending["event"] == "failure"
    assert "some-file" in ending["error"]


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    config = run_config(tmp_path, save=None, train_iters=6, eval_iters=0)
    config = replace(config, logging=replace(config.logging, straggler_threshold=1.5))

    def slow_down(rank: int) -> None:
        forward = Stage.forward

        def slow(self: Stage, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.3 if rank == 1 else 0.0)
            return forward(self, *args, **kwargs)

        Stage.forward = slow  # type: ignore[method-assign]

    result = launch(config, 2, before=slow_down)
    assert result.codes == [0, 0], result.complained
    assert "slower than the median of their stage in forward passes: rank 1 on " in result.said
    run = read_run(tmp_path / "log")
    assert set(run.curve("straggler-rank").ys) == {1.0}
    assert [event["ranks"][0]["rank"] for event in run.of_kind("straggler")] == [1]
