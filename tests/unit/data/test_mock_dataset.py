"""Made-up samples."""

import numpy as np

from megatron_tlm.data.mock_dataset import MockDataset


def test_samples_are_learnable_and_repeatable() -> None:
    dataset = MockDataset(100, 16, 50, seed=3)
    assert len(dataset) == 100
    for sample in range(100):
        ids = dataset[sample]
        assert ids.dtype == np.int64
        assert ids.shape == (17,)
        assert ids.min() >= 0
        assert ids.max() < 50
        assert len(set((np.diff(ids) % 50).tolist())) == 1
        assert ids.tolist() == MockDataset(100, 16, 50, seed=3)[sample].tolist()
    assert dataset[0].tolist() != MockDataset(100, 16, 50, seed=4)[0].tolist()
