"""One safetensors file: written as a stream, read as slices.

    8 bytes   length of the header, little endian
    header    JSON: key -> dtype, shape, [first byte, end byte]; padded with spaces to a multiple of 8
    data      the tensors, row-major, one after the other without a gap

The header stands before the data, so every dtype and shape must be known before the first tensor is: that is what
lets a rank write tensors that never exist in memory at the same time.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from megatron_tlm.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_WORTH_A_THREAD_BYTES = 1 << 16
# Larger writes make the kernel look for large runs of free pages: measured on ext4, 2 to 6 times slower with 4 MB.
_WRITE_BYTES = 1 << 18
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_code(dtype: torch.dtype) -> str:
    """The format's name of a dtype ("BF16"), or CheckpointError for one that the format cannot hold."""
    if dtype not in _CODES:
        raise CheckpointError(f"dtype = {dtype} cannot be stored; use one of {', '.join(map(str, _CODES))}")
    return _CODES[dtype]


def element_bytes(code: str) -> int:
    return DTYPES[code].itemsize


def volume(shape: Sequence[int]) -> int:
    """Number of elements; 1 for a scalar's empty shape. Python's integers: a claimed shape cannot overflow it."""
    count = 1
    for extent in shape:
        count *= extent
    return count


@dataclass(frozen=True)
class Entry:
    """One tensor of a file, before its bytes: key, dtype code ("F32"), shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return volume(self.shape) * element_bytes(self.dtype)


@dataclass(frozen=True)
class FileRecord:
    """What a finished file must still be when it is read: its length and its hash."""

    size_bytes: int
    sha256: str


def in_file_order(entries: Sequence[Entry]) -> list[Entry]:
    """Widest elements first, otherwise as given: then every tensor starts at a multiple of its element's size.

    A reader that maps the file needs that; a bf16 tensor of odd length before a float32 one would break it.
    """
    return sorted(entries, key=lambda entry: -element_bytes(entry.dtype))


def header_bytes(entries: Sequence[Entry]) -> bytes:
    """Length word and header of a file that holds `entries` in this order."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        if entry.key in table:
            raise CheckpointError(f"key = {entry.key} stands twice in one tensor file; give each piece once")
        end = start + entry.size_bytes
        table[entry.key] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class TensorFileWriter:
    """Writes one file block by block, hashing as it goes; `with` it, then ask `finish()` for the record.

    Entries must come in `in_file_order`. Leaving the block without finish() leaves a file that no manifest names.
    """

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        self.path = path
        self._entries = list(entries)
        self._index = 0
        self._written_bytes = 0
        self._size_bytes = 0
        self._digest = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(max_workers=1)
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        self._put(memoryview(header_bytes(self._entries)))

    def append(self, key: str, block: torch.Tensor) -> None:
        """Adds the next whole rows of tensor `key`: a block of any shape, its elements in row-major order."""
        self._skip_empty()
        if self._index == len(self._entries) or self._entries[self._index].key != key:
            due = self._entries[self._index].key if self._index < len(self._entries) else "the end of the file"
            raise CheckpointError(f"{self.path}: key = {key} comes where {due} is due; write in the header's order")
        entry = self._entries[self._index]
        if dtype_code(block.dtype) != entry.dtype:
            raise CheckpointError(
                f"{self.path}: dtype of {key} = {dtype_code(block.dtype)} but {entry.dtype} was announced; "
                "describe the tensor as it will be loaded"
            )
        block_bytes = block.numel() * block.element_size()
        if self._written_bytes + block_bytes > entry.size_bytes:
            raise CheckpointError(
                f"{self.path}: size of {key} = {self._written_bytes + block_bytes} bytes or more but "
                f"{entry.size_bytes} were announced; describe the tensor as it will be loaded"
            )
        if block_bytes:
            self._put(tensor_bytes(block))
        self._written_bytes += block_bytes
        if self._written_bytes == entry.size_bytes:
            self._index, self._written_bytes = self._index + 1, 0

    def finish(self) -> FileRecord:
        """Forces the bytes to the disk; CheckpointError names the first tensor that is not whole."""
        self._skip_empty()
        if self._index < len(self._entries):
            entry = self._entries[self._index]
            raise CheckpointError(
                f"{self.path}: size of {entry.key} = {self._written_bytes} bytes but {entry.size_bytes} were "
                "announced; describe the tensor as it will be loaded"
            )
        os.fsync(self._file.fileno())
        self._file.close()
        return FileRecord(self._size_bytes, self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.shutdown()
        self._file.close()

    def _skip_empty(self) -> None:
        while self._index < len(self._entries) and self._entries[self._index].size_bytes == 0:
            self._index += 1

    def _put(self, data: memoryview) -> None:
        self._size_bytes += len(data)
        if len(data) < _WORTH_A_THREAD_BYTES:
            self._digest.update(data)
            self._write(data)
            return
        # Hashing costs as much as writing and both release the interpreter, so they share the time.
        hashed = self._hasher.submit(self._digest.update, data)
        try:
            self._write(data)
        finally:
            hashed.result()

    def _write(self, rest: memoryview) -> None:
        while rest:
            rest = rest[self._file.write(rest[:_WRITE_BYTES]) :]


def tensor_bytes(block: torch.Tensor) -> memoryview:
    """The row-major bytes of a tensor of any device and strides."""
    flat = block.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _open(path: Path) -> Any:
    # The binding's stubs carry no types: Any keeps them from spreading.
    return safe_open(str(path), framework="pt")


class TensorFile:
    """A file opened for reading. Slices are views of the mapped file: copy what must outlive it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = _open(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is not a whole tensor file ({error}); use another step") from error
        self._keys = frozenset(self._handle.keys())

    def entry(self, key: str) -> Entry:
        """What the file's own header says of one tensor."""
        if key not in self._keys:
            raise CheckpointError(f"{self.path}: key = {key} is not in the file; use another step")
        tensor = self._handle.get_slice(key)
        return Entry(key, str(tensor.get_dtype()), tuple(tensor.get_shape()))

    def keys(self) -> frozenset[str]:
        return self._keys

    def read(self, key: str, offset: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        """The box [offset, offset + size) of one tensor, as a view of the file."""
        if not offset:
            return torch.as_tensor(self._handle.get_tensor(key))
        box = tuple(slice(start, start + extent) for start, extent in zip(offset, size, strict=True))
        return torch.as_tensor(self._handle.get_slice(key)[box])


def hash_file(path: Path, block_bytes: int = 1 << 22) -> FileRecord:
    """Length and SHA-256 of a file as it is on the disk now."""
    digest = hashlib.sha256()
    size_bytes = 0
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            digest.update(block)
            size_bytes += len(block)
    return FileRecord(size_bytes, digest.hexdigest())


def sync_directory(path: Path) -> None:
    """Makes names created in, renamed into or removed from a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
