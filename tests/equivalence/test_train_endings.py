"""How a run may end other than by its last step, and that every rank then ends, soon and with the right code."""

import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.config.schema import Config
from megatron_tlm.train.engines.zero import ZeroEngine
from tests.equivalence.launching import Launch, launch, losses_of, metrics_of, run_config
from tests.equivalence.training import show

GRID = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}


def saved_step(config: Config) -> int:
    assert config.checkpoint.save is not None
    with Reader(find(Path(config.checkpoint.save))) as reader:
        return reader.manifest.facts.step


def errors(ended: Launch) -> list[str]:
    return [line for line in ended.complained.splitlines() if line.startswith("megatron-tlm: error:")]


def test_a_run_tells_saves_logs_and_draws(tmp_path: Path) -> None:
    config = run_config(tmp_path, save_interval=4, keep_last=2)
    ended = launch(config, 2)
    assert ended.codes == [0, 0], ended.complained
    assert ended.out[1] == ""
    assert ended.complained == ""
    assert "layout: tensor 1 x pipe 1 x data 2 = 2 ranks, 2 micro-batches per step" in ended.out[0]
    assert "iteration  2/10 | loss 4.1" in ended.out[0]
    assert "validation at step 5 | loss" in ended.out[0]
    assert "finished 10 steps, 640 tokens" in ended.out[0]
    folders = sorted(path.name for path in (tmp_path / "ck").iterdir())
    assert folders == ["latest", "step-00000008", "step-00000010"]
    records = [json.loads(line) for line in (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 11))
    assert steps[-1]["tokens"] == 640
    assert all({"loss", "grad_norm", "lr", "tokens", "tokens_per_second"} <= set(record) for record in steps)
    assert [record["step"] for record in records if "valid_loss" in record] == [5, 10]
    assert (tmp_path / "log" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "num_layers: 3" in (tmp_path / "log" / "config.yaml").read_text()
    assert list((tmp_path / "log" / "tensorboard").glob("events.*"))


def test_a_pipeline_run_says_no_more_than_a_plain_one(tmp_path: Path) -> None:
    ended = launch(run_config(tmp_path, **GRID), 4)
    assert ended.codes == [0] * 4, ended.complained
    assert ended.out[1:] == [""] * 3
    assert ended.complained == ""
    assert ended.out[0].startswith("model: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize(("ranks", "changes"), [(2, {}), (4, GRID)], ids=["data2", "grid"])
def test_a_signal_to_one_rank_saves_on_all(
    number: signal.Signals, ranks: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = run_config(tmp_path, train_iters=100_000, eval_interval=100_000, **changes)

    def interrupt(pids: list[int]) -> None:
        metrics = tmp_path / "log" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.02)
        os.kill(pids[-1], number)

    ended = launch(config, ranks, meanwhile=interrupt)
    assert ended.codes == [0] * ranks, ended.complained
    assert ended.complained == ""
    step = len(losses_of(config))
    assert (
        f"stopped by {number.name} after step {step} of 100000, saved; --load {tmp_path / 'ck'} continues" in ended.said
    )
    assert saved_step(config) == step


def test_a_run_stops_and_saves_at_its_exit_interval(tmp_path: Path) -> None:
    config = run_config(tmp_path, exit_interval=4)
    ended = launch(config, 1)
    assert ended.codes == [0]
    assert "stopped by exit interval 4 after step 4 of 10, saved" in ended.said
    assert saved_step(config) == 4


def test_a_run_that_is_finished_has_nothing_to_do(tmp_path: Path) -> None:
    first = run_config(tmp_path)
    launch(first, 1)
    again = launch(run_config(tmp_path, load=first.checkpoint.save), 1)
    assert again.codes == [0]
    assert "nothing to do: step 10 of 10 is done; raise --train-iters" in again.said
    assert len(losses_of(first)) == 10


@pytest.mark.parametrize(("ranks", "changes"), [(2, {"zero_stage": 0}), (2, {"zero_stage": 1}), (4, GRID)], ids=show)
def test_a_loss_that_is_no_number_ends_every_rank(ranks: int, changes: dict[str, Any], tmp_path: Path) -> None:
    config = run_config(tmp_path, save_interval=1, **changes)
    config = replace(config, optimizer=replace(config.optimizer, lr=1e38, lr_warmup_init=1e-3))
    ended = launch(config, ranks)
    assert ended.codes == [2] * ranks, ended.complained
    assert len(errors(ended)) == 1
    step = saved_step(config)
    assert f"error: step {step + 1}: loss = " in errors(ended)[0]
    assert "is not finite; lower --lr" in errors(ended)[0]
    assert f"continue from the checkpoint of step {step}" in errors(ended)[0]


def test_a_rank_that_crashes_takes_the_others_along(tmp_path: Path) -> None:
    def sabotage(rank: int) -> None:
        if rank == 1:

            def crash(*_: Any) -> None:
                raise ValueError("made to fail")

            ZeroEngine.train_step = crash  # type: ignore[assignment]

    start = time.monotonic()
    ended = launch(run_config(tmp_path), 2, before=sabotage)
    assert ended.codes == [1, 1]
    assert "ValueError: made to fail" in ended.err[1]
    assert re.search(r"rank 0 on \S+, stage 0, step 1: lost its peers", ended.err[0])
    assert re.search(r"rank 1 on \S+, stage 0, step 1:\n", ended.err[1])
    assert "Traceback" not in ended.err[0]
    assert time.monotonic() - start < 60


def test_a_save_folder_that_cannot_be_ends_every_rank_before_a_step(tmp_path: Path) -> None:
    (tmp_path / "ck").write_text("in the way")
    ended = launch(run_config(tmp_path, exit_interval=2), 2)
    assert ended.codes == [2, 2]
    assert all(f"{tmp_path / 'ck'} cannot be written" in said for said in ended.err)


def test_a_save_folder_of_another_run_is_refused_once(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "ck"):
        ended = launch(run_config(tmp_path, exit_interval=2), 2)
    assert ended.codes == [2, 2]
    assert len(errors(ended)) == 1
    assert f"{tmp_path / 'ck'} is held by another run" in errors(ended)[0]


def test_load_without_a_checkpoint_is_refused_unless_a_fresh_start_is_allowed(tmp_path: Path) -> None:
    config = run_config(tmp_path, load=str(tmp_path / "ck"))
    ended = launch(config, 1)
    assert ended.codes == [2]
    assert "so there is no checkpoint" not in ended.said
    assert "--allow-fresh-start starts from scratch" in ended.complained
    config = run_config(tmp_path, load=str(tmp_path / "ck"), allow_fresh_start=True, exit_interval=5)
    ended = launch(config, 1)
    assert ended.codes == [0], ended.complained
    assert "holds no checkpoint yet: starting from scratch" in ended.said
    # The same command line again is a resume.
    assert launch(config, 1).codes == [0]
    assert [record["step"] for record in metrics_of(config) if "loss" in record] == list(range(1, 11))


def test_a_used_save_folder_is_refused_and_a_former_log_kept(tmp_path: Path) -> None:
    first = run_config(tmp_path, exit_interval=2, keep_last=1)
    assert launch(first, 1).codes == [0]
    again = launch(first, 2)
    assert again.codes == [2, 2]
    assert again.said == ""
    assert f"the newest of step 2, and this run starts from scratch; add --load {tmp_path / 'ck'}" in again.complained
    other = replace(first, checkpoint=replace(first.checkpoint, save=str(tmp_path / "other")))
    ended = launch(other, 1)
    assert ended.codes == [0], ended.complained
    assert f"{tmp_path / 'log' / 'metrics.jsonl'} of a former run is now metrics.1.jsonl" in ended.said
    assert (tmp_path / "ck" / "step-00000002").is_dir()


def test_a_resumed_run_is_told_what_changed(tmp_path: Path) -> None:
    first = run_config(tmp_path, exit_interval=2)
    assert launch(first, 1).codes == [0]
    changed = {"train_iters": 20, "weight_decay": 0.2, "exit_interval": 3, "load": first.checkpoint.save}
    ended = launch(run_config(tmp_path, **changed), 1)
    assert ended.codes == [0], ended.complained
    assert "schedule changed: cosine 0.01 to 0 over 10 steps, " in ended.said
    assert "optimizer.weight_decay changed: 0.1 -> 0.2" in ended.said
    assert f"continued from {tmp_path / 'ck' / 'step-00000002'} at step 2" in ended.said


def test_fine_tuning_starts_from_weights(tmp_path: Path) -> None:
    first = run_config(tmp_path / "first", exit_interval=2)
    assert launch(first, 1).codes == [0]
    tuned = run_config(tmp_path / "tuned", load=first.checkpoint.save, finetune=True, exit_interval=1, weight_decay=0.2)
    ended = launch(tuned, 1)
    assert ended.codes == [0], ended.complained
    assert f"weights from {tmp_path / 'first' / 'ck' / 'step-00000002'} (step 2); steps, data and" in ended.said
    assert "changed" not in ended.said
    assert saved_step(tuned) == 1


def test_a_checkpoint_of_another_model_is_refused_by_every_rank(tmp_path: Path) -> None:
    first = run_config(tmp_path / "first", exit_interval=1)
    launch(first, 1)
    other = run_config(tmp_path / "other", load=first.checkpoint.save, ffn_hidden_size=128, num_layers=2)
    ended = launch(other, 2)
    assert ended.codes == [2, 2]
    # Before a process group stands, where each rank leaves by the exception.
    assert errors(ended) == []
    for said in ended.err:
        assert "num_layers = 3 (not 2), widths = (96, 64, 32) (not (192, 64))" in said


def test_a_process_on_its_own_needs_no_launcher(tmp_path: Path) -> None:
    def forget(rank: int) -> None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]

    ended = launch(run_config(tmp_path, exit_interval=2), 1, before=forget)
    assert ended.codes == [0], ended.complained
    assert saved_step(run_config(tmp_path)) == 2
