"""Made-up samples, to try a layout without a corpus."""

import numpy as np
from numpy.typing import NDArray


class MockDataset:
    """Arithmetic progressions modulo the vocabulary: any number of samples, and a model can learn them."""

    def __init__(self, num_samples: int, seq_length: int, vocab_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.seed = seed

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, sample: int) -> NDArray[np.int64]:
        start, stride = np.random.default_rng((self.seed, sample)).integers((0, 1), (self.vocab_size, 8))
        ids: NDArray[np.int64] = (start + stride * np.arange(self.seq_length + 1, dtype=np.int64)) % self.vocab_size
        return ids
