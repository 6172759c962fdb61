"""Windows over a corpus: each token but the first is a label exactly once, in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.evaluation.windows import count_windows, windows


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    seq_length=st.integers(1, 12),
    batch=st.integers(1, 5),
)
def test_each_token_but_the_first_is_a_label_once(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seq_length: int, batch: int
) -> None:
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    tokens = np.arange(sum(lengths))
    with IndexedDatasetWriter(prefix, np.dtype(np.int32)) as writer:
        for ids in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.add_document(ids)
    indexed = IndexedDataset(prefix)
    found = list(windows(indexed, range(len(indexed)), seq_length, batch))
    assert len(found) == count_windows(len(tokens), seq_length, batch)
    assert np.array_equal(np.concatenate([w[:, 1:].ravel() for w in found] or [[]]), tokens[1:])
    assert np.array_equal(np.concatenate([w[:, :-1].ravel() for w in found] or [[]]), tokens[:-1])
    assert all(w.shape[0] <= batch and w.shape[1] <= seq_length + 1 for w in found)
    assert all(w.shape[1] == seq_length + 1 for w in found[:-1])
