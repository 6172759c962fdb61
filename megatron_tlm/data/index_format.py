"""The bytes of a Megatron `.idx` file: a header of 34 bytes and three arrays, little-endian, without padding.

offset      type        what
0           9 bytes     MMIDIDX\\0\\0
9           u64         version, always 1
17          u8          code of the token type in the `.bin`
18          u64         N, number of sequences
26          u64         M, length of the border array: documents + 1
34          int32[N]    tokens of each sequence
34 + 4N     int64[N]    byte offset of each sequence in the `.bin`
34 + 12N    int64[M]    document borders as sequence indices: first 0, last N
34+12N+8M   int8[N]     mode of each sequence; multimodal sets only, read over here
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_tlm.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
TOKEN_CODES: dict[int, np.dtype[np.integer]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int8),
    3: np.dtype(np.int16),
    4: np.dtype(np.int32),
    5: np.dtype(np.int64),
    8: np.dtype(np.uint16),
}
FLOAT_CODES = (6, 7)  # mcore and GPT-NeoX disagree on which is float32; neither holds token ids
SMALL_VOCABULARY = 65500  # Megatron's border, not 65536


@dataclass(frozen=True)
class IndexHeader:
    """What the first 34 bytes say."""

    dtype: np.dtype[np.integer]
    num_sequences: int
    num_borders: int

    @property
    def lengths_at(self) -> int:
        return HEADER.size

    @property
    def offsets_at(self) -> int:
        return self.lengths_at + 4 * self.num_sequences

    @property
    def borders_at(self) -> int:
        return self.offsets_at + 8 * self.num_sequences

    @property
    def file_bytes(self) -> int:
        """Size of the whole `.idx`, without the modes of a multimodal set."""
        return self.borders_at + 8 * self.num_borders


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """The type Megatron stores ids of such a vocabulary in."""
    return np.dtype(np.uint16) if vocab_size < SMALL_VOCABULARY else np.dtype(np.int32)


def pack_header(header: IndexHeader) -> bytes:
    code = {dtype: code for code, dtype in TOKEN_CODES.items()}[header.dtype]
    return HEADER.pack(MAGIC, VERSION, code, header.num_sequences, header.num_borders)


def read_header(path: Path) -> IndexHeader:
    """The header of an `.idx`, or a DataError that says why it is none."""
    with path.open("rb") as file:
        raw = file.read(HEADER.size)
        file_bytes = path.stat().st_size
    if raw.startswith(b"TNTIDX"):
        raise DataError(
            f"{path} starts with TNTIDX, the old format of fairseq, not with {MAGIC!r}; preprocess the text again"
        )
    if not raw.startswith(MAGIC):
        raise DataError(f"{path} starts with {raw[:9]!r}, not with {MAGIC!r}; give the prefix of a Megatron .bin/.idx")
    if len(raw) < HEADER.size:
        raise DataError(f"{path} has {file_bytes} bytes, fewer than its header's {HEADER.size}; preprocess again")
    _, version, code, num_sequences, num_borders = HEADER.unpack(raw)
    if version != VERSION:
        raise DataError(f"{path} has version {version}, not {VERSION}; preprocess the text again")
    if code not in TOKEN_CODES:
        known = "floating-point numbers" if code in FLOAT_CODES else "an unknown type"
        raise DataError(
            f"{path} has type code {code}, {known}, not token ids; give a pair of one of {sorted(TOKEN_CODES)}"
        )
    header = IndexHeader(TOKEN_CODES[code], num_sequences, num_borders)
    if file_bytes not in (header.file_bytes, header.file_bytes + num_sequences):
        raise DataError(
            f"{path} has {file_bytes} bytes where its {num_sequences} sequences and {num_borders} borders "
            f"take {header.file_bytes}; the file is cut or damaged, preprocess again"
        )
    return header
