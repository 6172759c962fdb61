"""A kill at any point of a save leaves the former checkpoint, or the new one: something to resume from, whole."""

import os
import signal
from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader, check_hashes, find
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.killing import kill_everywhere
from tests.unit.checkpoint.made import facts, model_shape, save, values

SHAPE = model_shape()


def ordinal_found(root: Path) -> int:
    """Which save is found, whole to the last bit; -1 where there was none yet."""
    if not step_directories(root):
        with pytest.raises(CheckpointError, match=r"so there is no checkpoint|so nothing can be loaded"):
            find(root)
        return -1
    with Reader(find(root, tell=lambda _: None)) as reader:
        check_hashes(reader.path, reader.manifest)
        return reader.manifest.ordinal


@pytest.mark.parametrize("second", ["again", "next"])
def test_a_kill_at_any_point_leaves_a_checkpoint_to_find(tmp_path: Path, second: str) -> None:
    shape = model_shape(widths=(8,))
    tensors = values(shape, {"weight": torch.float32})

    def two_saves(root: Path) -> None:
        save(root, tensors, facts(shape, step=1))
        save(root, tensors, facts(shape, step=1 if second == "again" else 2))

    points = kill_everywhere(two_saves, tmp_path)
    assert points > 25
    ordinals = [ordinal_found(tmp_path / str(at)) for at in range(points + 1)]
    # Nothing, then the first save, then the second: never back.
    assert ordinals == sorted(ordinals)
    assert set(ordinals) == {-1, 0, 1}
    # The next save after any of these kills works and is found.
    for at in range(0, points + 1, 3):
        saved = save(tmp_path / str(at), tensors, facts(shape, step=2))
        assert find(tmp_path / str(at), tell=pytest.fail) == saved


def test_a_rank_killed_while_it_writes_leaves_no_checkpoint(tmp_path: Path) -> None:
    former = save(tmp_path, values(SHAPE), facts(SHAPE, step=5))
    partial = begin(tmp_path, 10)
    child = os.fork()
    if child == 0:

        def die() -> torch.Tensor:
            os.kill(os.getpid(), signal.SIGKILL)
            return torch.zeros(0)

        tensors = [Piece("x", "weight", (4,), (0,), (4,), torch.float32, lambda: torch.zeros(4))]
        write_part(partial, 1, [*tensors, Piece("y", "weight", (4,), (0,), (4,), torch.float32, die)])
    os.waitpid(child, 0)
    assert (partial / "part-00001.safetensors").exists()
    write_part(partial, 0, [])
    with pytest.raises(CheckpointError, match="lacks part 1 of 2; rank 1 did not finish"):
        commit(partial, facts(SHAPE), parts=2)
    assert find(tmp_path, tell=pytest.fail) == former
