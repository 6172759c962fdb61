"""Saving beside training changes nothing but the clock: same losses, same bytes, and a kill costs one interval."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.train.saving import saver as saver_module
from tests.equivalence.launching import assert_equal_bits, launch, losses_of, run_config

GRID = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "bf16": True}


def slow_writer(rank: int) -> None:
    """Writing a part takes several steps' time."""
    write_part = saver_module.write_part

    def slow(*args: Any) -> Any:
        time.sleep(0.3)
        return write_part(*args)

    saver_module.write_part = slow


def tensors_at(root: Path, step: int) -> dict[tuple[str, str], Any]:
    with Reader(root / f"step-{step:08d}") as reader:
        return {(name, role): reader.read(name, role) for name, role in reader.manifest.tensors}


def test_a_save_beside_training_holds_the_same_bytes(tmp_path: Path) -> None:
    runs = {}
    for name, options in (("beside", {}), ("between", {"async_save": False})):
        config = run_config(tmp_path / name, save_interval=4, **options, **GRID)
        ended = launch(config, 4, before=slow_writer)
        assert ended.codes == [0] * 4, ended.complained
        assert ended.said.count("s of which training stood still") == 3
        runs[name] = config
    assert losses_of(runs["beside"]) == losses_of(runs["between"])
    for step in (4, 8, 10):
        beside, between = (tensors_at(tmp_path / name / "ck", step) for name in runs)
        assert_equal_bits(beside, between)


def test_a_rank_that_cannot_write_ends_all_at_a_later_step(tmp_path: Path) -> None:
    def full_disk(rank: int) -> None:
        if rank == 1:

            def refuse(*_: Any) -> None:
                raise OSError(28, "No space left on device", "part-00001.safetensors")

            saver_module.write_part = refuse

    config = run_config(tmp_path, save_interval=2)
    ended = launch(config, 2, before=full_disk)
    assert ended.codes == [2, 2]
    assert ended.complained.count("megatron-tlm: error: ") == 1
    assert "rank 1: part-00001.safetensors = " in ended.complained
    assert 2 <= len(losses_of(config)) <= 4
    assert not (tmp_path / "ck" / "latest").exists()


def test_a_kill_while_a_save_runs_beside_costs_no_more_than_what_follows_the_last(tmp_path: Path) -> None:
    whole = run_config(tmp_path / "whole")
    assert launch(whole, 2).codes == [0, 0]

    def hang_at_the_second(rank: int) -> None:
        write_part = saver_module.write_part
        calls = []

        def hang(*args: Any) -> Any:
            calls.append(args)
            if len(calls) > 1:
                time.sleep(60)
            return write_part(*args)

        saver_module.write_part = hang

    def kill_when_hanging(pids: list[int]) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (tmp_path / "killed/ck/.step-00000006.partial").exists():
            time.sleep(0.02)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    killed = run_config(tmp_path / "killed", save_interval=3)
    ended = launch(killed, 2, before=hang_at_the_second, meanwhile=kill_when_hanging)
    assert ended.codes == [-signal.SIGKILL] * 2
    again = run_config(tmp_path / "killed", save_interval=3, load=killed.checkpoint.save)
    ended = launch(again, 2)
    assert ended.codes == [0, 0], ended.complained
    assert f"continued from {tmp_path / 'killed/ck/step-00000003'} at step 3" in ended.said
    assert losses_of(again) == losses_of(whole)
    assert_equal_bits(tensors_at(tmp_path / "killed/ck", 10), tensors_at(tmp_path / "whole/ck", 10))
