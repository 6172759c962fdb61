"""The streamed writer makes plain safetensors files, and says what is wrong with its input."""

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatron_tlm.checkpoint.tensor_file import (
    DTYPES,
    Entry,
    FileRecord,
    TensorFile,
    TensorFileWriter,
    dtype_code,
    hash_file,
    in_file_order,
)
from megatron_tlm.errors import CheckpointError


def written(path: Path, tensors: dict[str, torch.Tensor]) -> FileRecord:
    entries = in_file_order([Entry(key, dtype_code(t.dtype), tuple(t.shape)) for key, t in tensors.items()])
    with TensorFileWriter(path, entries) as writer:
        for entry in entries:
            writer.append(entry.key, tensors[entry.key])
        return writer.finish()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_is_read_back_by_the_safetensors_library(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (3, 5)).to(dtype)
    written(tmp_path / "a.safetensors", {"x": tensor})
    found = load_file(tmp_path / "a.safetensors")["x"]
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_mixed_widths_scalars_and_strided_views_are_read_back(tmp_path: Path) -> None:
    # Three bf16 elements before a float32 tensor would put the latter at an odd multiple of two bytes.
    tensors = {
        "narrow": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        "byte": torch.tensor([1], dtype=torch.uint8),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "wide": torch.tensor([1e-300], dtype=torch.float64),
    }
    written(tmp_path / "a.safetensors", tensors)
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[key], tensors[key]) and found[key].dtype == tensors[key].dtype for key in tensors)


def test_the_record_is_that_of_the_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    record = written(path, {"x": torch.randn(100, 100), "y": torch.randn(3).bfloat16()})
    assert record == hash_file(path, block_bytes=1000)
    assert record == FileRecord(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_part_without_tensors_is_a_file_too(tmp_path: Path) -> None:
    written(tmp_path / "a.safetensors", {})
    assert load_file(tmp_path / "a.safetensors") == {}


@given(data=st.data())
def test_blocks_and_slices_are_the_tensor(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("file") / "a.safetensors"
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    tensor = torch.randn(rows, columns)
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows)))})
    with TensorFileWriter(path, [Entry("x", "F32", (rows, columns))]) as writer:
        for start, stop in pairwise(cuts):
            writer.append("x", tensor[start:stop])
        writer.finish()
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    height, width = data.draw(st.integers(1, rows - row)), data.draw(st.integers(1, columns - column))
    found = TensorFile(path).read("x", (row, column), (height, width))
    assert torch.equal(found, tensor[row : row + height, column : column + width])


def test_what_was_not_announced_is_refused(tmp_path: Path) -> None:
    x = Entry("x", "F32", (2, 3))
    with (
        TensorFileWriter(tmp_path / "a", [x]) as writer,
        pytest.raises(CheckpointError, match=r"key = y comes where x"),
    ):
        writer.append("y", torch.zeros(2, 3))
    with TensorFileWriter(tmp_path / "b", [x]) as writer, pytest.raises(CheckpointError, match=r"of x = F64 but F32"):
        writer.append("x", torch.zeros(2, 3, dtype=torch.float64))
    with TensorFileWriter(tmp_path / "c", [x]) as writer, pytest.raises(CheckpointError, match=r"48 bytes .* but 24"):
        writer.append("x", torch.zeros(4, 3))
    with TensorFileWriter(tmp_path / "d", [x]) as writer:
        writer.append("x", torch.zeros(1, 3))
        with pytest.raises(CheckpointError, match=r"12 bytes but 24 were"):
            writer.finish()
    with pytest.raises(CheckpointError, match=r"key = x stands twice"):
        TensorFileWriter(tmp_path / "e", [x, x])
    with pytest.raises(CheckpointError, match=r"dtype = torch.complex64 cannot be stored"):
        dtype_code(torch.complex64)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:5],
        lambda data: b"",
        lambda data: (1 << 60).to_bytes(8, "little") + data[8:],
        lambda data: data.replace(b'"F32"', b'"F99"'),
        lambda data: data.replace(b"[0,24]", b"[8,24]"),
        lambda data: b"\x80\x04pickle" + data,
    ],
    ids=["cut", "longer", "header cut", "empty", "huge header", "unknown dtype", "wrong range", "pickle"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    path = tmp_path / "a.safetensors"
    written(path, {"x": torch.zeros(2, 3)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"a\.safetensors is not a whole tensor file \(.*\); use another step"):
        TensorFile(path)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    written(tmp_path / "a.safetensors", {"x": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"key = y is not in the file"):
        TensorFile(tmp_path / "a.safetensors").entry("y")
