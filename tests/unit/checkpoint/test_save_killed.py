"""A kill at any point of a save leaves the former checkpoint, or the new one: something to resume from, whole."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader, check_hashes, find
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.made import facts, model_shape, save, values

SHAPE = model_shape()

# Every system call that changes a name or forces bytes out is a place to die at.
KILLED = textwrap.dedent("""
    import builtins, os, signal, shutil, sys
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    os.fsync = lambda _: None
    from tests.unit.checkpoint.made import facts, model_shape, save, values

    root, again = Path(sys.argv[1]), sys.argv[2] == "again"
    shape = model_shape(widths=(8,))
    tensors = values(shape, {"weight": torch.float32})
    for at in range(10_000):
        child = os.fork()
        if child == 0:
            left = at
            def dying(call):
                def counted(*args, **kwargs):
                    global left
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left -= 1
                    return call(*args, **kwargs)
                return counted
            for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
                setattr(os, name, dying(getattr(os, name)))
            save(root / str(at), tensors, facts(shape, step=1))
            save(root / str(at), tensors, facts(shape, step=1 if again else 2))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            print(at)
            break
""")


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
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), second],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    points = int(run.stdout)
    assert points > 25
    ordinals = [ordinal_found(tmp_path / str(at)) for at in range(points + 1)]
    # Nothing, then the first save, then the second: never back.
    assert ordinals == sorted(ordinals)
    assert set(ordinals) == {-1, 0, 1}
    # The next save after any of these kills works and is found.
    shape = model_shape(widths=(8,))
    for at in range(0, points + 1, 3):
        saved = save(tmp_path / str(at), values(shape, {"weight": torch.float32}), facts(shape, step=2))
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
    with pytest.raises(CheckpointError, match="part 1 of 2 = missing; rank 1 did not finish"):
        commit(partial, facts(SHAPE), parts=2)
    assert find(tmp_path, tell=pytest.fail) == former
