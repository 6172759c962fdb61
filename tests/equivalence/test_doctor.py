"""A rehearsal on forked ranks: what passes, and that every rank ends alike where one finds a fault."""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_tlm.cli import doctor
from megatron_tlm.config.dump import dump
from megatron_tlm.config.schema import Config, DataConfig
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.doctor import axes, rehearsal
from megatron_tlm.train.survival import rank_facts
from tests.equivalence.launching import Launch, launch, run_config

GRID = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}


def rehearse(
    folder: Path, config: Config, ranks: int, *words: str, also: Callable[[int], None] = lambda rank: None
) -> Launch:
    """`doctor --config` on every rank, in place of a run; `also(rank)` first."""
    path = folder / "run.yaml"
    path.write_text(dump(config))

    def look(rank: int) -> None:
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
        also(rank)
        code = doctor.main(["--config", str(path), "--timeout", "20", *words])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return launch(config, ranks, before=look)


def rows(ended: Launch) -> dict[str, str]:
    """Check -> its line of the table."""
    lines = [
        line.split(maxsplit=1) for line in ended.out[0].splitlines() if line[:4] in ("pass", "warn", "fail", "skip")
    ]
    return {rest.split("  ")[0]: f"{status} {rest}" for status, rest in lines}


def verdict(ended: Launch) -> str:
    return ended.out[0].splitlines()[-1]


def test_four_sound_ranks_are_ready(tmp_path: Path) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path, **GRID), 4)
    assert ended.codes == [0] * 4, ended.complained
    assert ended.out[1:] == [""] * 3
    found = rows(ended)
    assert "4 ranks on 1 node: same code, versions and configuration" in found["all ranks alike"]
    assert "all ranks see" in found["checkpoint.save shared"]
    for axis in ("tensor", "pipe"):
        assert "2 ranks inside a node: sums right" in found[f"axis {axis}"]
    assert "axis data" not in found
    assert "loss 4." in found["step"]
    assert "of the plan's" in found["peak memory"]
    # On a busy machine one of the two groups may be slow, which is told.
    assert verdict(ended).startswith(("ready: ", "ready, with a warning: axis "))
    # Nothing is left of it but the folders.
    assert list((tmp_path / "ck").iterdir()) == []
    assert list((tmp_path / "log").iterdir()) == []


def test_json_and_no_step(tmp_path: Path) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path), 2, "--json", "--no-step")
    assert ended.codes == [0, 0], ended.complained
    told = json.loads(ended.out[0])
    assert told["ready"] is True
    assert told["verdict"].startswith("ready")
    checks = [item["check"] for item in told["findings"]]
    assert "axis data" in checks
    assert "step" not in checks


def other_code(rank: int) -> None:
    if rank == 1:
        hashes = dict(rank_facts.source_hashes()) | {"train/loop.py": "0" * 12}
        rank_facts.source_hashes = lambda: hashes  # type: ignore[assignment]


def a_clock_ahead(rank: int) -> None:
    if rank == 1:
        right = rehearsal._clock
        rehearsal._clock = lambda: right() + 100


def a_wrong_sum(rank: int) -> None:
    if rank == 1:
        right = axes.sum_over
        axes.sum_over = lambda x, axis: right(x, axis) + 1  # type: ignore[assignment]


def a_step_that_fails(rank: int) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory left\non this rank")

    rehearsal.take_step = fail if rank == 1 else lambda *_: {}  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_code, r"not ready: all ranks alike: code = "),
        (a_clock_ahead, r"not ready: clock: "),
        (a_wrong_sum, r"not ready: axis data: an all-reduce gave a wrong sum on ranks 0, 1"),
    ],
    ids=["code", "clock", "sum"],
)
def test_a_fault_of_one_rank_is_the_verdict_of_all(
    change: Callable[[int], None], sentence: str, tmp_path: Path
) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path), 2, "--no-step", also=change)
    assert ended.codes == [1, 1], ended.complained
    assert verdict(ended).startswith(sentence)
    assert ended.out[1] == ""


def test_a_rank_that_cannot_take_the_step_says_why(tmp_path: Path) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path), 2, also=a_step_that_fails)
    assert ended.codes == [1, 1], ended.complained
    assert "RuntimeError: no memory left; see the words of that rank; lower --micro-batch-size" in verdict(ended)


def test_a_configuration_that_train_refuses_is_the_verdict(tmp_path: Path) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path, global_batch_size=3), 2)
    assert ended.codes == [1, 1], ended.complained
    assert verdict(ended).startswith("not ready: configuration: training.global_batch_size = 3 is not a multiple of")
    found = rows(ended)
    # What needs no plan is looked at all the same; what needs one says that there is none.
    for name in ("data", "checkpoint.save", "checkpoint.save shared", "groups", "clock", "axis data"):
        assert found[name].startswith("pass"), found
    for name in ("memory", "room for checkpoints", "step"):
        assert found[name].startswith("skip"), found


def test_what_hangs_on_a_failure_is_left_out_with_the_reason(tmp_path: Path) -> None:
    ended = rehearse(tmp_path, run_config(tmp_path), 2, also=other_code)
    found = rows(ended)
    for name in ("checkpoint.save shared", "groups", "clock", "axes", "step"):
        assert found[name].startswith("skip"), found
    assert found["groups"].endswith("not tried, for all ranks alike: see there")
    assert found["clock"].endswith("not tried, for groups: see there")


def test_corpora_that_differ_are_named(tmp_path: Path) -> None:
    def own(rank: int) -> None:
        """Each rank on a disk of its own, as far as it can see."""
        Path(f"{tmp_path}/rank-{rank}").mkdir()
        os.chdir(f"{tmp_path}/rank-{rank}")
        with IndexedDatasetWriter(Path("corpus"), np.dtype(np.uint16)) as writer:
            for length in range(5, 40):
                writer.add_document(np.arange(length) % (20 + rank))

    config = replace(run_config(tmp_path), data=DataConfig(data_path=("corpus",), split="80,20,0"))
    ended = rehearse(tmp_path, config, 2, "--no-step", also=own)
    assert ended.codes == [1, 1], ended.complained
    assert re.match(
        r"not ready: data alike: corpus 1 = fingerprint \w{12} on \S+, fingerprint \w{12} on \S+; "
        r"copy the \.bin/\.idx pair anew",
        verdict(ended),
    )
