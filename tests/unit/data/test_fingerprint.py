"""What changed between two runs is named; what does not change the order is not held against them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_tlm.data.fingerprint import Fingerprint, build_fingerprint
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import DataError


def write(prefix: Path, first: int) -> IndexedDataset:
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add_document(np.arange(first, first + 50))
    return IndexedDataset(prefix)


def build(*corpora: IndexedDataset, **changes: Any) -> Fingerprint:
    settings = {"weights": (0.5, 0.5), "seed": 1, "seq_length": 8, "split": "969,30,1", "planned_samples": 100}
    return build_fingerprint("corpora", corpora, **(settings | changes))


def test_every_change_is_named(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / name, first) for name, first in (("a", 0), ("b", 1), ("c", 2)))
    before = build(a, b)
    assert before.changes(before.values) == ()
    expected = {
        "training.seed 1 is now 2": build(a, b, seed=2),
        "model.seq_length 8 is now 9": build(a, b, seq_length=9),
        "data.split 969,30,1 is now 1": build(a, b, split="1"),
        "the weights of the blend 0.5 0.5 is now 0.4 0.6": build(a, b, weights=(0.4, 0.6)),
        f"corpus 2 ({c.prefix}) holds other tokens": build(a, c),
    }
    for text, now in expected.items():
        assert now.changes(before.values) == (text,)
    assert "the number of corpora 2 is now 3" in build(a, b, c).changes(before.values)
    with pytest.raises(DataError, match=r"data = other than those of step 7 \(training.seed 1 is now 2; model.seq_len"):
        build(a, b, seed=2, seq_length=9).check(before.values, "step 7")


def test_where_it_lies_and_how_long_the_run_is_do_not_count(tmp_path: Path) -> None:
    before = build(write(tmp_path / "a", 0))
    now = build(write(tmp_path / "elsewhere", 0), planned_samples=500)
    now.check(before.values, "a checkpoint")
    assert (before.planned_samples, now.planned_samples) == (100, 500)


def test_a_checkpoint_without_a_fingerprint_is_not_questioned(tmp_path: Path) -> None:
    now = build(write(tmp_path / "a", 0))
    now.check({}, "an old checkpoint")
    now.check({"other": 1}, "an old checkpoint")
    assert replace(now, paths=()).changes({}) == ()
