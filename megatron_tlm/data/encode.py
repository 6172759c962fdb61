"""A chunk of text to ids: a pure function, so it does not matter which process runs it, or when."""

from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.documents import Chunk
from megatron_tlm.data.index_format import token_dtype
from megatron_tlm.data.lines import BadLine, Document
from megatron_tlm.data.pair_stream import DIGEST_BYTES
from megatron_tlm.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """The documents of one chunk under one key."""

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]  # of its sequences
    sequences: NDArray[np.int32]  # of each document


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk's documents under every key, and its bad lines."""

    by_key: dict[str, Encoded]
    documents: int
    bad_lines: tuple[BadLine, ...]
    text_bytes: int
    input_bytes: int
    digest: bytes


def chunk_digest(chunk: Chunk) -> bytes:
    lost = chunk.lost_bytes.to_bytes(8, "little")
    return blake2b(chunk.data, digest_size=DIGEST_BYTES, salt=chunk.unit.encode(), person=lost).digest()


@dataclass(frozen=True)
class Encoder:
    """`stop`: raise DataError for the first bad line instead of handing it back."""

    tokenizer: Tokenizer
    keys: tuple[str, ...]
    append_eod: bool
    stop: bool

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        documents: list[Document] = []
        bad: list[BadLine] = []
        for entry in chunk.entries(self.keys):
            if not isinstance(entry, BadLine):
                documents.append(entry)
            elif self.stop:
                raise entry.error()
            else:
                bad.append(entry)
        by_key = {key: self._encode([document[key] for document in documents]) for key in self.keys}
        size = len(chunk.data) + chunk.lost_bytes
        return EncodedChunk(by_key, len(documents), tuple(bad), size, chunk.input_bytes, chunk_digest(chunk))

    def _encode(self, documents: list[tuple[str, ...]]) -> Encoded:
        ids = iter(self.tokenizer.encode_arrays([text for texts in documents for text in texts]))
        end = np.array([self.tokenizer.eod_id] if self.append_eod else [], np.int32)
        pieces: list[NDArray[np.int32]] = []
        lengths: list[int] = []
        sequences: list[int] = []
        for texts in documents:
            own = [part for part in islice(ids, len(texts)) if len(part)]
            sequences.append(len(own))
            if own:  # Megatron's rule: an empty document gets no end either
                pieces += own
                pieces.append(end)
                lengths += map(len, own)
                lengths[-1] += len(end)
        tokens = np.concatenate(pieces or [end[:0]]).astype(token_dtype(self.tokenizer.vocab_size))
        return Encoded(tokens, np.array(lengths, np.int32), np.array(sequences, np.int32))
