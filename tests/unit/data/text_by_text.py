"""A tokenizer for tests to change: whatever is asked of it goes through `encode`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.tokenizers import ByteTokenizer


class TextByText(ByteTokenizer):
    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array(self.encode(text), np.int32) for text in texts]
