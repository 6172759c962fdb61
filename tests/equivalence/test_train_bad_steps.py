"""Whole runs in which a step goes wrong: they end as if its samples had never been in the data."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.config.schema import Config
from megatron_tlm.train import loop
from megatron_tlm.train.engines.gate import Judge, accept
from megatron_tlm.train.engines.pipeline import PipelineEngine
from megatron_tlm.train.engines.zero import ZeroEngine
from megatron_tlm.train.survival import rollback
from tests.equivalence.launching import assert_equal_bits, events_of, launch, metrics_of, run_config, tensors_of
from tests.equivalence.training import GLOBAL_BATCH, show

ZERO, TENSOR, PIPE = "zero_stage", "tensor_model_parallel_size", "pipeline_model_parallel_size"

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {ZERO: 0, "cms_levels": 2, "cms_periods": (1, 3)}),
    (2, {ZERO: 2, "bf16": True}),
    (2, {ZERO: 3}),
    (4, {PIPE: 2, TENSOR: 2}),
]
BAD = 5  # the number of the batch, from 0


def break_batch(rank: int) -> None:
    """On this rank, whenever the sixth batch comes, the mixer of layer 1 gives infinities."""
    seen: list[bytes] = []

    def sabotaged(take: Callable[..., Any]) -> Callable[..., Any]:
        def train_step(self: Any, batches: Iterator[NDArray[np.int64]], rate: float, judge: Judge = accept) -> Any:
            taken = list(islice(batches, self._plan.micro_batches))
            key = taken[0].tobytes()
            if key not in seen:
                seen.append(key)
            blocks = {unit.name: block for unit, block in zip(self.stage.units, self.stage.blocks, strict=True)}
            block = blocks.get("layers.1.mixer")
            if seen.index(key) != BAD or block is None:
                return take(self, iter(taken), rate, judge)
            hook = block.register_forward_hook(lambda *call: call[2] * torch.inf, prepend=True)
            try:
                return take(self, iter(taken), rate, judge)
            finally:
                hook.remove()

        return train_step

    for engine in (ZeroEngine, PipelineEngine):
        engine.train_step = sabotaged(engine.train_step)  # type: ignore[method-assign]


def leave_out(first: int, last: int) -> Callable[[int], None]:
    """On this rank, batches from `first` to before `last` are not in the training data."""

    def patch(rank: int) -> None:
        whole = loop.micro_batches

        def without(*given: Any, global_batch_size: int, micro_batch_size: int, data_size: int, **more: Any) -> Any:
            sizes = {"global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
            stream = whole(*given, **sizes, data_size=data_size, **more)
            each = global_batch_size // micro_batch_size // data_size
            for number, batch in enumerate(stream):
                if not first <= number // each < last:
                    yield batch

        loop.micro_batches = without  # type: ignore[assignment]

    return patch


def finished(config: Config, ranks: int, before: Callable[[int], None]) -> str:
    ended = launch(config, ranks, before=before)
    assert ended.codes == [0] * ranks, ended.complained + ended.said
    return ended.said


@pytest.mark.parametrize(("ranks", "changes"), LAYOUTS, ids=show)
def test_a_run_goes_back_and_on_behind_the_bad_step(ranks: int, changes: dict[str, Any], tmp_path: Path) -> None:
    """Bad is step 6, and the last checkpoint that of step 4: batches 4 and 5 are left out of what follows it."""
    config = run_config(tmp_path / "a", save_interval=4, on_nonfinite="rollback", eval_iters=0, **changes)
    said = finished(config, ranks, break_batch)
    wanted = run_config(tmp_path / "b", save_interval=4, eval_iters=0, **changes)
    finished(wanted, ranks, leave_out(4, 6))
    assert_equal_bits(tensors_of(config), tensors_of(wanted))
    ours, theirs = metrics_of(config), metrics_of(wanted)
    assert [record["step"] for record in ours] == list(range(1, 11))
    assert [record["loss"] for record in ours] == [record["loss"] for record in theirs]
    assert "step 6: loss = " in said
    assert f"samples {BAD * GLOBAL_BATCH} to {BAD * GLOBAL_BATCH + 3}, first in the output of layers.1.mixer" in said
    assert "step 6: back to the checkpoint of step 4, and on behind the samples of this one; 2 steps lost" in said
    events = [event for event in events_of(config) if event["event"] in ("bad_step", "rollback")]
    assert [(event["event"], event["step"]) for event in events] == [("bad_step", 6), ("rollback", 6)]
    assert events[0]["unit"] == "layers.1.mixer"
    assert events[0]["samples"] == [20, 23]


def damage_newest(rank: int) -> None:
    """As `break_batch`; and a byte of step 4 is changed just before a rollback reads it."""
    break_batch(rank)
    whole = rollback.damage

    def damage(source: Path, rank: int, ranks: int) -> str | None:
        if source.name == "step-00000004" and rank == 0:
            part = source / next(iter(read_manifest(source).files))  # which is rank 0's to read
            *kept, last = part.read_bytes()
            part.write_bytes(bytes([*kept, last ^ 1]))
        return whole(source, rank, ranks)

    rollback.damage = damage  # type: ignore[attr-defined]


def test_a_damaged_checkpoint_is_passed_over_on_the_way_back(tmp_path: Path) -> None:
    """Bad is step 6, damaged step 4: on from step 2, batches 2 to 5 left out."""
    config = run_config(tmp_path / "a", save_interval=2, on_nonfinite="rollback", eval_iters=0, **{ZERO: 2})
    said = finished(config, 2, damage_newest)
    wanted = run_config(tmp_path / "b", save_interval=2, eval_iters=0, **{ZERO: 2})
    finished(wanted, 2, leave_out(2, 6))
    assert_equal_bits(tensors_of(config), tensors_of(wanted))
    assert [record["step"] for record in metrics_of(config)] == list(range(1, 11))
    assert re.search(r"passed over step-00000004: \S+: sha256 = \w+ but \w+ was written; the file was damaged", said)
    assert "step 6: back to the checkpoint of step 2, and on behind the samples of this one; 4 steps lost" in said


def test_a_run_all_of_whose_checkpoints_are_damaged_stops(tmp_path: Path) -> None:
    config = run_config(tmp_path, save_interval=4, on_nonfinite="rollback", eval_iters=0, **{ZERO: 2})
    ended = launch(config, 2, before=damage_newest)
    assert ended.codes == [2, 2], ended.complained + ended.said
    assert re.search(r"ck holds 0 whole checkpoints to go back to; \S+step-00000004/\S+: sha256 = ", ended.complained)


def test_a_skipped_step_is_a_step_without_its_samples_also_after_a_resume(tmp_path: Path) -> None:
    """The same as a run that is told beforehand to leave that step out, and stopped right behind it."""
    changes = {PIPE: 2, "cms_levels": 2, "cms_periods": (1, 3), "eval_iters": 0}
    config = run_config(tmp_path / "a", on_nonfinite="skip", **changes)
    said = finished(config, 2, break_batch)
    assert "step 6: left out, 1 of at most 10" in said
    told = run_config(tmp_path / "b", iterations_to_skip=(6,), exit_interval=6, **changes)
    finished(told, 2, lambda rank: None)
    finished(run_config(tmp_path / "b", load=told.checkpoint.save, **changes), 2, lambda rank: None)
    assert_equal_bits(tensors_of(config), tensors_of(told))
    assert metrics_of(config) == metrics_of(told)
    assert [record["step"] for record in metrics_of(config)] == [1, 2, 3, 4, 5, 7, 8, 9, 10]


def test_a_run_whose_first_step_is_skipped_can_be_saved_and_continued(tmp_path: Path) -> None:
    """Before any update there are no moments: zeros are stored."""
    config = run_config(tmp_path, iterations_to_skip=(1, 2), exit_interval=2, eval_iters=0, train_iters=4)
    finished(config, 2, lambda rank: None)
    resumed = run_config(tmp_path, load=config.checkpoint.save, eval_iters=0, train_iters=4)
    finished(resumed, 2, lambda rank: None)
    whole = run_config(tmp_path / "whole", iterations_to_skip=(1, 2), eval_iters=0, train_iters=4)
    finished(whole, 2, lambda rank: None)
    assert_equal_bits(tensors_of(resumed), tensors_of(whole))
