"""A widened view reads the narrow tensor and zeros behind it, whatever box is asked for."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.widen import Widened
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.made import facts, model_shape, row_halves, save, values

NAMES = ("layers.1.mlp.up.weight", "layers.1.mlp.down.weight", "embedding.weight", "layers.0.mlp.gate.weight")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = values(model_shape())
    return save(tmp_path_factory.mktemp("narrow"), made, facts(model_shape()), boxes=row_halves(made))


@settings(max_examples=60)
@given(data=st.data())
def test_any_box_is_that_of_the_padded_tensor(checkpoint: Path, data: st.DataObject) -> None:
    with Reader(checkpoint) as reader:
        wide = Widened(reader, (24, 32, 9))
        name, role = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(["weight", "exp_avg"]))
        narrow, shape = reader.read(name, role), wide.record(name, role).shape
        whole = torch.zeros(shape, dtype=narrow.dtype)
        whole[tuple(slice(extent) for extent in narrow.shape)] = narrow
        assert torch.equal(wide.read(name, role), whole)
        offset = tuple(data.draw(st.integers(0, extent)) for extent in shape)
        size = tuple(data.draw(st.integers(0, extent - start)) for extent, start in zip(shape, offset, strict=True))
        box = tuple(slice(start, start + extent) for start, extent in zip(offset, size, strict=True))
        buffer = torch.full((whole.numel(),), torch.nan, dtype=narrow.dtype)
        assert torch.equal(wide.read(name, role, offset, size, into=buffer), whole[box])


def test_facts_and_shapes_are_the_wide_model_s(checkpoint: Path) -> None:
    with Reader(checkpoint) as reader:
        wide = Widened(reader, (24, 32, 9))
        assert wide.manifest.facts.shape.widths == (24, 32, 9)
        assert wide.record("layers.1.mlp.up.weight", "master").shape == (32, 8)
        assert wide.record("layers.1.mlp.down.weight", "master").shape == (8, 32)
        assert wide.record("layers.0.mlp.up.weight", "master") == reader.record("layers.0.mlp.up.weight", "master")


def test_nothing_is_cut_off(checkpoint: Path) -> None:
    with (
        Reader(checkpoint) as reader,
        pytest.raises(CheckpointError, match=r"layers\.0 width = 24 cannot become 16 without losing weights"),
    ):
        Widened(reader, (16, 16, 16))
