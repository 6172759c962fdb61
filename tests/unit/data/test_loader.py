"""From configuration to micro-batches: the right split for each use, each sample once, the same after a resume."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.config.schema import DataConfig
from megatron_tlm.data.blend import BlendedDataset
from megatron_tlm.data.gpt_dataset import GPTDataset, SampleDataset
from megatron_tlm.data.loader import (
    BLEND_STATE,
    Datasets,
    build_datasets,
    check_corpora,
    corpora,
    data_facts,
    micro_batches,
    samples_by_source,
)
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import DataError


def write(prefix: Path, num_documents: int, first_id: int = 0) -> str:
    """Documents of 20 tokens, document i all of id first_id + i."""
    with IndexedDatasetWriter(prefix, np.dtype(np.uint16)) as writer:
        for document in range(num_documents):
            writer.add_document(np.full(20, first_id + document))
    return str(prefix)


Split = SampleDataset | None


def build_all(data: DataConfig, num_samples: tuple[int | None, int | None, int | None], **options: Any) -> Datasets:
    return build_datasets(data, num_samples=num_samples, **({"seq_length": 8, "seed": 1, "vocab_size": 1000} | options))


def build(
    data: DataConfig, num_samples: tuple[int | None, int | None, int | None], **options: Any
) -> tuple[Split, Split, Split]:
    built = build_all(data, num_samples, **options)
    return built.train, built.valid, built.test


def ids_of(dataset: object) -> set[int]:
    assert isinstance(dataset, GPTDataset | BlendedDataset)
    return {int(id_) for sample in range(len(dataset)) for id_ in dataset[sample]}


def test_splits_do_not_share_a_document(tmp_path: Path) -> None:
    train, valid, test = build(DataConfig(data_path=(write(tmp_path / "a", 20),), split="80,10,10"), (30, 2, 2))
    assert ids_of(train) <= set(range(16))
    assert ids_of(valid) <= {16, 17}
    assert ids_of(test) <= {18, 19}


def test_a_split_that_is_not_wanted_may_be_empty(tmp_path: Path) -> None:
    datasets = build_all(DataConfig(data_path=(write(tmp_path / "a", 20),), split="100,0,0"), (30, 0, 0))
    assert datasets.notes == (
        f"data: {tmp_path}/a: 400 tokens in 20 sequences to train on, 30 samples of it are 0.60 epochs",
    )
    assert datasets.valid is None
    assert datasets.test is None


def test_none_asks_for_one_epoch(tmp_path: Path) -> None:
    train, _, _ = build(DataConfig(data_path=(write(tmp_path / "a", 20),), split="1"), (None, 0, 0))
    assert isinstance(train, GPTDataset)
    assert len(train) == (20 * 20 - 1) // 8


def test_an_empty_split_is_told_and_left_out(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", 20)
    built = build_all(DataConfig(data_path=(prefix,), split="100,0,0"), (30, 2, 0))
    assert built.valid is None
    what = f"data.split = '100,0,0' leaves 0 of the 20 sequences of {prefix} for valid"
    assert built.notes[1:] == (f"no valid samples of it: {what}",)
    with pytest.raises(DataError, match=r"split = '0,100,0' leaves 0 of the 20 sequences of .*a for train; raise"):
        build(DataConfig(data_path=(prefix,), split="0,100,0"), (30, 2, 0))


def test_a_corpus_too_small_for_a_split_is_left_out_of_its_blend(tmp_path: Path) -> None:
    words = ("3", write(tmp_path / "a", 100), "1", write(tmp_path / "b", 10, first_id=100))
    built = build_all(DataConfig(data_path=words, split="97,3,0"), (40, 8, 0))
    assert isinstance(built.valid, BlendedDataset)
    assert ids_of(built.valid) <= set(range(97, 100))
    assert "of the 10 sequences of" in built.notes[-1]


def test_a_split_without_a_path_of_its_own_is_left_out(tmp_path: Path) -> None:
    built = build_all(DataConfig(train_data_path=(write(tmp_path / "a", 5),)), (None, 2, 0))
    assert built.valid is None
    assert built.notes[-1] == "no valid samples: data.valid_data_path names no corpus"


@pytest.mark.parametrize("blended", [False, True])
def test_a_longer_run_keeps_the_order_of_the_one_it_continues(tmp_path: Path, blended: bool) -> None:
    a, b = write(tmp_path / "a", 10), write(tmp_path / "b", 10, first_id=100)
    data = DataConfig(data_path=("2", a, "1", b) if blended else (a,), split="1")
    first = build_all(data, (60, 0, 0))
    kept = data_facts(first, 33)
    longer = build_all(data, (500, 0, 0), before=kept)
    anew = build_all(data, (500, 0, 0))
    assert first.train is not None
    assert longer.train is not None
    assert anew.train is not None
    rows = [first.train[i].tolist() for i in range(60)]
    assert [longer.train[i].tolist() for i in range(60)] == rows
    assert [anew.train[i].tolist() for i in range(60)] != rows
    assert longer.fingerprint.values == first.fingerprint.values
    assert (BLEND_STATE in kept) == blended
    if blended:
        assert len(longer.train) == 501


def test_tokens_are_counted_by_source(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 10), write(tmp_path / "b", 10, first_id=100)
    train, _, _ = build(DataConfig(data_path=("2", a, "1", b), split="1"), (60, 0, 0))
    assert train is not None
    read = [int(train[i][0] >= 100) for i in range(60)]
    for sample in (0, 7, 60):
        assert samples_by_source(train, sample) == {a: sample - sum(read[:sample]), b: sum(read[:sample])}
    assert samples_by_source(train, 130) == {a: 2 * 40 + 10 - sum(read[:10]), b: 2 * 20 + sum(read[:10])}
    single, _, _ = build(DataConfig(data_path=(a,), split="1"), (60, 0, 0))
    assert single is not None
    assert samples_by_source(single, 7) == {a: 7}
    assert samples_by_source(MockDataset(5, 4, 9, 1), 7) == {}


def test_the_order_is_cached_where_asked(tmp_path: Path) -> None:
    data = DataConfig(data_path=(write(tmp_path / "a", 20),), split="1", data_cache_path=str(tmp_path / "cache"))
    first, again = (build(data, (60, 0, 0))[0] for _ in range(2))
    assert first is not None
    assert again is not None
    assert [first[i].tolist() for i in range(60)] == [again[i].tolist() for i in range(60)]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_a_path_for_each_split_takes_all_its_documents(tmp_path: Path) -> None:
    data = DataConfig(
        train_data_path=(write(tmp_path / "a", 5),), valid_data_path=(write(tmp_path / "b", 5, first_id=100),)
    )
    train, valid, _ = build(data, (None, None, 0))
    assert ids_of(train) == set(range(5))
    assert ids_of(valid) == set(range(100, 105))


def test_a_blend_draws_on_every_corpus(tmp_path: Path) -> None:
    words = ("3", write(tmp_path / "a", 10), "1", write(tmp_path / "b", 10, first_id=100))
    train, valid, _ = build(DataConfig(data_path=words, split="80,20"), (40, 8, 0))
    assert isinstance(train, BlendedDataset)
    assert len(train) == 40
    from_b = sum(int(train[sample][0] >= 100) for sample in range(40))
    assert from_b == 10
    assert ids_of(train) <= {*range(8), *range(100, 108)}
    assert ids_of(valid) <= {8, 9, 108, 109}


def test_one_epoch_of_a_blend_is_refused(tmp_path: Path) -> None:
    words = ("3", write(tmp_path / "a", 10), "1", write(tmp_path / "b", 10))
    with pytest.raises(DataError, match="one epoch, has no meaning for 2 blended corpora"):
        build(DataConfig(data_path=words), (None, 0, 0))


def test_sets_with_a_name_are_whole_and_as_long_as_validation(tmp_path: Path) -> None:
    data = DataConfig(
        data_path=(write(tmp_path / "a", 20),),
        split="80,20,0",
        eval_data=(f"b={write(tmp_path / 'b', 9, 100)}", f"again={tmp_path / 'a'}"),
    )
    built = build_all(data, (30, 5, 0))
    assert list(built.named) == ["b", "again"]
    assert ids_of(built.named["b"]) <= set(range(100, 109))
    assert all(len(dataset) >= 5 for dataset in built.named.values())
    whole = build_all(data, (30, None, 0)).named
    assert [ids_of(dataset) for dataset in whole.values()] == [set(range(100, 109)), set(range(20))]
    assert build_all(data, (30, 0, 0)).named == {}
    # What trains and what is validated on stay what they are without them.
    plain = build_all(replace(data, eval_data=()), (30, 5, 0))
    assert plain.fingerprint == built.fingerprint
    assert plain.valid is not None
    assert built.valid is not None
    assert np.array_equal(plain.valid[3], built.valid[3])


def test_a_missing_set_with_a_name_is_told_before_anything_is_built(tmp_path: Path) -> None:
    data = DataConfig(mock_data=True, eval_data=("b=nowhere",))
    with pytest.raises(DataError, match=r"nowhere.idx does not exist"):
        check_corpora(data, 1000, valid=True)
    check_corpora(data, 1000, valid=False)
    assert corpora(replace(data, eval_data=("b=y", "c=x")), valid=True) == ("x", "y")


def test_mock_data_needs_no_corpus() -> None:
    train, valid, test = build(DataConfig(mock_data=True), (30, None, 0))
    assert isinstance(train, MockDataset)
    assert isinstance(valid, MockDataset)
    assert test is None
    assert len(train) == 30
    assert train[0].tolist() != valid[0].tolist()


def test_mistakes_about_paths_are_told(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", 20)
    with pytest.raises(DataError, match=r"data\.data_path = \(\) names no corpus"):
        build(DataConfig(), (30, 0, 0))
    with pytest.raises(DataError, match=r"data\.train_data_path = \(\) names no corpus"):
        build(DataConfig(valid_data_path=(prefix,)), (30, 2, 0))
    with pytest.raises(DataError, match="stands beside a path for one split"):
        build(DataConfig(data_path=(prefix,), train_data_path=(prefix,)), (30, 0, 0))
    with pytest.raises(DataError, match=r"none\.idx does not exist"):
        build(DataConfig(data_path=(str(tmp_path / "none"),)), (30, 0, 0))
    with pytest.raises(DataError, match=r"^data\.train_data_path = .* has 3 words"):
        build(DataConfig(train_data_path=("1", prefix, prefix)), (30, 0, 0))


def test_a_corpus_of_another_tokenizer_or_too_short_is_refused(tmp_path: Path) -> None:
    data = DataConfig(data_path=(write(tmp_path / "a", 20),), split="1")
    with pytest.raises(DataError, match="token id 19 is beyond the model's vocab_size = 10"):
        build(data, (30, 0, 0), vocab_size=10)
    with pytest.raises(DataError, match=r"seq_length = 400 .* takes 401 tokens .* holds 400"):
        build(data, (30, 0, 0), seq_length=400)


def take(count: int, **options: int) -> list[list[list[int]]]:
    batches = micro_batches(MockDataset(1000, 4, 997, 1), **options)
    return [batch.tolist() for batch in islice(batches, count)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_every_sample_of_a_step_is_read_once_whatever_the_layout(
    micro_batch_size: int, data_size: int, num_micro: int, start_sample: int
) -> None:
    dataset = MockDataset(60, 4, 997, 1)
    across = micro_batch_size * data_size
    global_batch_size = across * num_micro
    seen: dict[int, list[int]] = {}
    for data_rank in range(data_size):
        batches = micro_batches(
            dataset,
            start_sample=start_sample,
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            data_rank=data_rank,
            data_size=data_size,
        )
        for micro in range(2 * num_micro):  # two steps
            batch = next(batches)
            assert batch.dtype == np.int64
            assert batch.shape == (micro_batch_size, 5)
            for row, ids in enumerate(batch.tolist()):
                g = micro * across + data_rank * micro_batch_size + row
                assert (g // across, g // micro_batch_size % data_size) == (micro, data_rank)
                assert g not in seen
                seen[g] = ids
    assert seen == {g: dataset[(start_sample + g) % 60].tolist() for g in range(2 * global_batch_size)}


def test_a_resumed_run_reads_what_the_uninterrupted_one_would() -> None:
    sizes = {"micro_batch_size": 2, "global_batch_size": 8, "data_rank": 1, "data_size": 2}
    whole = take(20, start_sample=0, **sizes)
    assert take(10, start_sample=40, **sizes) == whole[10:]
    # ... and at another layout the same samples make up every step
    steps = {
        (data_size, micro): sorted(
            ids
            for rank in range(data_size)
            for batch in take(
                8 // (micro * data_size),
                start_sample=40,
                micro_batch_size=micro,
                global_batch_size=8,
                data_rank=rank,
                data_size=data_size,
            )
            for ids in batch
        )
        for data_size, micro in ((1, 1), (2, 2), (4, 1), (1, 8))
    }
    assert all(step == steps[1, 1] for step in steps.values())


def test_a_global_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(DataError, match=r"global_batch_size = 10 .* micro_batch_size 2 x data degree 2; 8 or 12 would"):
        take(1, start_sample=0, micro_batch_size=2, global_batch_size=10, data_rank=0, data_size=2)
    with pytest.raises(DataError, match=r"global_batch_size = 3 .*; 4 would"):
        take(1, start_sample=0, micro_batch_size=2, global_batch_size=3, data_rank=0, data_size=2)
