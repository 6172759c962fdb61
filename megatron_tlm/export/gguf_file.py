"""One GGUF file (version 3), written as a stream. Format: ggml's docs/gguf.md.

    "GGUF" | version | number of tensors, of settings | settings | name, dims, type, offset of each tensor
    padding to 32 bytes | tensors, each padded to 32 bytes

Integers are little endian, a string is its length (u64) and UTF-8, dims are listed innermost first.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from megatron_tlm.checkpoint.tensor_file import tensor_bytes
from megatron_tlm.errors import ExportError

ALIGNMENT = 32
TENSOR_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Value = int | float | bool | str | Sequence[int] | Sequence[float] | Sequence[str]


@dataclass(frozen=True)
class GgufTensor:
    """One tensor before its bytes; `shape` outermost first, as torch has it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class GgufWriter:
    """Writes header and tensors in the given order; leaving the block early leaves a file that is not whole."""

    def __init__(self, path: Path, settings: Mapping[str, Value], tensors: Sequence[GgufTensor]) -> None:
        self._tensors = list(tensors)
        self._index = self._written_bytes = 0
        self._file = open(path, "xb")  # noqa: SIM115 (closed by __exit__)
        head = _header(settings, self._tensors)
        self._file.write(head + b"\0" * (-len(head) % ALIGNMENT))

    def append(self, name: str, block: torch.Tensor) -> None:
        """The next elements of a tensor, in row-major order."""
        due = self._tensors[self._index] if self._index < len(self._tensors) else None
        if due is None or due.name != name or due.dtype != block.dtype:
            raise ExportError(f"{name} came as {block.dtype}, but {due} is due; write in the header's order")
        data = tensor_bytes(block)
        self._file.write(data)
        self._written_bytes += len(data)
        if self._written_bytes >= due.size_bytes:
            if self._written_bytes > due.size_bytes:
                raise ExportError(
                    f"{name} has {self._written_bytes} bytes but {due.size_bytes} were announced; give as many"
                )
            self._file.write(b"\0" * (-due.size_bytes % ALIGNMENT))
            self._index, self._written_bytes = self._index + 1, 0

    def finish(self) -> None:
        """ExportError names the first tensor that is not whole."""
        if self._index < len(self._tensors):
            raise ExportError(
                f"{self._tensors[self._index].name} was not whole when the file was closed; write all of it"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _header(settings: Mapping[str, Value], tensors: Iterable[GgufTensor]) -> bytes:
    listed = list(tensors)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(listed), len(settings))]
    for key, value in settings.items():
        parts += [_text(key), _setting(value)]
    offset = 0
    for tensor in listed:
        dims = tensor.shape[::-1]
        kind = TENSOR_TYPES[tensor.dtype]
        parts += [_text(tensor.name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
        offset += -(-tensor.size_bytes // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


def _setting(value: Value) -> bytes:
    """Type and value: integers are u32 alone and i32 in arrays, floats f32."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    kind = _STRING if isinstance(value[0], str) else _F32 if isinstance(value[0], float) else _I32
    head = struct.pack("<IIQ", _ARRAY, kind, len(value))
    if kind == _STRING:
        return head + b"".join(_text(str(item)) for item in value)
    return head + struct.pack(f"<{len(value)}{'f' if kind == _F32 else 'i'}", *value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
