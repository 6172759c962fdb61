"""A save is whole or absent: what it wrote is read back, faults of ranks and disks are named."""

import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatron_tlm.checkpoint import save as save_module
from megatron_tlm.checkpoint.load import Reader, check_hashes, find
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.made import facts, model_shape, piece, row_halves, save, values, whole
from tests.unit.checkpoint.test_tiling import split

SHAPE = model_shape()


def test_the_parts_are_plain_safetensors_files(tmp_path: Path) -> None:
    tensors = values(SHAPE)
    directory = save(tmp_path, tensors, facts(SHAPE), boxes=row_halves(tensors))
    assert directory == tmp_path / "step-00000010"
    assert (tmp_path / "latest").read_text() == "step-00000010\n"
    assert sorted(path.name for path in directory.iterdir()) == [
        "manifest.json",
        "part-00000.safetensors",
        "part-00001.safetensors",
    ]
    first = load_file(directory / "part-00000.safetensors")
    up = tensors["layers.0.mlp.up.weight", "master"]
    assert torch.equal(first["master/layers.0.mlp.up.weight[0:12,0:8]"], up[:12])


@settings(max_examples=15)
@given(data=st.data())
def test_any_cut_of_any_tensor_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tensors = values(SHAPE, {"weight": torch.bfloat16, "momentum": torch.float64})
    tensors["scheduler.count", "state"] = torch.tensor(12)
    tensors["embedding.weight", "row_mean"] = torch.randn(37)
    parts = data.draw(st.integers(1, 4))
    chosen = data.draw(st.lists(st.sampled_from(sorted(tensors)), unique=True, max_size=4))
    boxes = {
        key: [(data.draw(st.integers(0, parts - 1)), box) for box in split(tuple(tensors[key].shape), data)]
        for key in chosen
        if tensors[key].dim()
    }
    directory = save(tmp_path_factory.mktemp("run"), tensors, facts(SHAPE), boxes=boxes, parts=parts)
    with Reader(directory, open_files=2) as reader:
        check_hashes(directory, reader.manifest)
        assert reader.manifest.tensors.keys() == tensors.keys()
        for key, tensor in tensors.items():
            found = reader.read(*key)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def load() -> torch.Tensor:
        assert not any(former() is not None for former in alive)
        tensor = torch.zeros(4)
        alive.append(weakref.ref(tensor))
        return tensor

    pieces = [Piece(f"x{index}", "weight", (4,), (0,), (4,), torch.float32, load) for index in range(3)]
    write_part(begin(tmp_path, 1), 0, pieces)
    assert len(alive) == 3


def test_pieces_of_padding_only_are_skipped(tmp_path: Path) -> None:
    partial = begin(tmp_path, 10)
    none = Piece("embedding.weight", "weight", (37, 8), (37, 0), (0, 8), torch.bfloat16, lambda: torch.zeros(0, 8))
    write_part(partial, 0, [piece(*key, tensor, whole(tensor)) for key, tensor in values(SHAPE).items()])
    write_part(partial, 1, [none])
    assert find(commit(partial, facts(SHAPE), parts=2).parent).name == "step-00000010"


def refused(tmp_path: Path, message: str, change: Callable[[list[Piece]], None], parts: int = 2) -> None:
    """A part 0 as it should be but for `change`, a part 1 that is nearly empty: commit fails, nothing is found."""
    tensors = values(SHAPE)
    held = [piece(*key, tensor, whole(tensor)) for key, tensor in tensors.items()]
    change(held)
    partial = begin(tmp_path, 10)
    write_part(partial, 0, held)
    write_part(partial, 1, [piece("other", "state", torch.zeros(4, 4), ((0, 0), (2, 4)))] if "other" in message else [])
    with pytest.raises(CheckpointError, match=message):
        commit(partial, facts(SHAPE), parts=parts)
    with pytest.raises(
        CheckpointError, match=r"only \.step-00000010\.partial, never finished, so there is no checkpoint"
    ):
        find(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    refused(tmp_path, r"lacks part 2 of 3; rank 2 did not finish", lambda held: None, parts=3)


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    refused(tmp_path, r"tensors\.weight/embedding\.weight = absent but .* \[37, 8\]", lambda held: held.pop(0))


def test_a_hole_is_named(tmp_path: Path) -> None:
    def half(held: list[Piece]) -> None:
        held[1] = piece("embedding.weight", "master", torch.zeros(37, 8), ((0, 0), (30, 8)))

    refused(tmp_path, r"tensors\.master/embedding\.weight = the pieces cover 240 of 296 elements", half)


def test_two_ranks_that_wrote_the_same_are_named(tmp_path: Path) -> None:
    def same(held: list[Piece]) -> None:
        held.append(piece("embedding.weight", "master", torch.zeros(37, 8), ((0, 0), (1, 8))))

    refused(tmp_path, r"master/embedding\.weight = \[0:1,0:8\] and \[0:37,0:8\] overlap", same)


def test_ranks_that_disagree_on_a_tensor_are_named(tmp_path: Path) -> None:
    def other(held: list[Piece]) -> None:
        held.append(piece("other", "state", torch.zeros(4, 4).double(), ((2, 0), (2, 4))))

    message = r"state/other = F32 \[4, 4\] in part-00001\.safetensors but F64 \[4, 4\] in part-00000\.safetensors"
    refused(tmp_path, message, other)


def test_a_part_that_was_cut_is_named(tmp_path: Path) -> None:
    partial = begin(tmp_path, 10)
    size_bytes = write_part(partial, 0, [piece("x", "weight", torch.zeros(4), ((0,), (4,)))]).size_bytes
    with open(partial / "part-00000.safetensors", "r+b") as file:
        file.truncate(size_bytes - 1)
    with pytest.raises(CheckpointError, match=rf"safetensors has {size_bytes - 1} bytes but {size_bytes} were written"):
        commit(partial, facts(SHAPE), parts=1)


def test_what_a_piece_says_of_itself_must_hold(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"piece\.name = '\.\./x' does not match"):
        Piece("../x", "weight", (4,), (0,), (4,), torch.float32, lambda: torch.zeros(4))
    with pytest.raises(CheckpointError, match=r"piece\.role = 'Exp Avg' does not match"):
        Piece("x", "Exp Avg", (4,), (0,), (4,), torch.float32, lambda: torch.zeros(4))
    wrong = Piece("x", "weight", (4, 2), (0, 0), (4, 2), torch.float32, lambda: torch.zeros(2, 4))
    with pytest.raises(CheckpointError, match=r"weight/x is a tensor of \[2, 4\] but \[4, 2\] was announced"):
        write_part(begin(tmp_path, 1), 0, [wrong])
    twice = piece("x", "weight", torch.zeros(4), ((0,), (4,)))
    with pytest.raises(CheckpointError, match=r"key = weight/x stands twice"):
        write_part(begin(tmp_path, 1), 0, [twice, twice])


def test_a_part_is_written_once_and_its_step_committed(tmp_path: Path) -> None:
    partial = begin(tmp_path, 10)
    write_part(partial, 0, [])
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors cannot be written \(File exists\)"):
        write_part(partial, 0, [])
    with pytest.raises(CheckpointError, match=r"facts\.step = 11 but \.step-00000010\.partial was begun"):
        commit(partial, facts(SHAPE, step=11), parts=1)


def test_a_tokenizer_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer = .*absent\.model is not a file"):
        save(tmp_path, values(SHAPE), facts(SHAPE), tokenizer=tmp_path / "absent.model")


def test_a_full_disk_is_told_and_the_former_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = save(tmp_path, values(SHAPE), facts(SHAPE, step=5))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save_module.TensorFileWriter, "_put", full)
    with pytest.raises(
        CheckpointError, match=r"part-00000\.safetensors cannot be written \(No space left on device\); make room"
    ):
        save(tmp_path, values(SHAPE), facts(SHAPE))
    assert find(tmp_path, tell=lambda _: None) == former


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, values(SHAPE), facts(SHAPE))
    tensors = values(SHAPE)
    tensors["head.norm.weight", "weight"] = torch.full((8,), 3.0)
    with Reader(save(tmp_path, tensors, facts(SHAPE))) as reader:
        assert torch.equal(reader.read("head.norm.weight", "weight"), torch.full((8,), 3.0))
        assert reader.manifest.ordinal == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000010"]


def test_bytes_are_on_the_disk_before_their_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def fsync(descriptor: int) -> None:
        told.append(f"sync {os.path.relpath(os.readlink(f'/proc/self/fd/{descriptor}'), tmp_path)}")

    def renamed(call: Callable[..., None]) -> Callable[..., None]:
        def rename(old: Path, new: Path) -> None:
            told.append(f"name {new.relative_to(tmp_path)}")
            call(old, new)

        return rename

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed(os.rename))
    monkeypatch.setattr(os, "replace", renamed(os.replace))
    save(tmp_path, values(SHAPE), facts(SHAPE), parts=1)
    partial = ".step-00000010.partial"
    assert told == [
        f"sync {partial}/part-00000.safetensors",
        f"sync {partial}/.part-00000.json.new",
        f"name {partial}/part-00000.json",
        f"sync {partial}",
        f"sync {partial}/.manifest.json.new",
        f"name {partial}/manifest.json",
        f"sync {partial}",
        "name step-00000010",
        "sync .",
        "sync .latest.new",
        "name latest",
        "sync .",
    ]
