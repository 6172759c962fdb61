"""kill -9 at any point of a conversion: no target or a whole one, the source as it was, and the next attempt works."""

from pathlib import Path

import pytest

from megatron_tlm.checkpoint.load import check_hashes, find
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.checkpoint.verify import verify
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.killing import kill_everywhere
from tests.unit.checkpoint.made import convert, facts, model_shape, save, values


def test_a_kill_at_any_point_leaves_no_half_target(tmp_path: Path) -> None:
    shape = model_shape(widths=(8,))
    tensors = {key: tensor for key, tensor in values(shape).items() if key[1] in ("weight", "exp_avg")}
    source = save(tmp_path / "source", tensors, facts(shape, grid=Grid(pipe=2)))
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    points = kill_everywhere(lambda target: convert(source, target, tensor=2, pipe=1, workers=1), tmp_path)
    assert points > 25
    whole = 0
    for at in range(points + 1):
        target = tmp_path / str(at)
        if step_directories(target):
            found = find(target, tell=lambda _: None)
            check_hashes(found, read_manifest(found))
            whole += 1
        else:
            with pytest.raises(CheckpointError, match=r"so there is no checkpoint|so nothing can be loaded"):
                find(target)
    assert 1 <= whole < points
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    for at in range(0, points, 5):
        if not step_directories(tmp_path / str(at)):
            again = convert(tmp_path / "source", tmp_path / str(at), tensor=2, pipe=1, workers=1)
            assert verify(source, again, workers=1) == len(tensors)
