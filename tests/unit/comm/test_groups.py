import os
from datetime import timedelta
from typing import Any

import pytest
import torch

from megatron_tlm.comm.groups import (
    AxisGroup,
    all_reduce_max,
    all_reduce_sum,
    barrier,
    broadcast_object,
    build_mesh,
    gather_object,
    init_distributed,
    new_groups_wait,
    shutdown,
    single_mesh,
)
from megatron_tlm.errors import CommError
from megatron_tlm.plan.grid import Grid
from tests.ranks import run_ranks


def test_one_process_needs_no_world() -> None:
    mesh = build_mesh(Grid())
    assert mesh == single_mesh()
    assert (mesh.tensor.size, mesh.data.size, mesh.pipe.size) == (1, 1, 1)
    assert all_reduce_max([3.0]) == [3.0]
    assert all_reduce_sum([3.0]) == [3.0]
    assert broadcast_object({"step": 4}) == {"step": 4}
    assert gather_object("here") == ["here"]
    barrier()
    shutdown()


def meet(rank: int, grid: Grid) -> dict[str, Any]:
    mesh = build_mesh(grid)
    axes = {"pipe": mesh.pipe, "data": mesh.data, "tensor": mesh.tensor}
    return {
        "coordinate": tuple(mesh.coordinate),
        "ranks": {name: (axis.ranks, axis.rank) for name, axis in axes.items()},
        "sums": {name: all_reduce_sum([float(rank)], axis) for name, axis in axes.items()},
        "max": all_reduce_max([float(rank), -float(rank)]),
        "source": broadcast_object(f"from {rank}", source=grid.size - 1),
        "gathered": gather_object(rank * 10),
    }


@pytest.mark.parametrize("grid", [Grid(pipe=2, tensor=2), Grid(data=2, tensor=2), Grid(pipe=2, data=2), Grid(tensor=4)])
def test_every_axis_joins_the_ranks_of_its_group(grid: Grid) -> None:
    for rank, told in enumerate(run_ranks(4, meet, grid)):
        assert told["coordinate"] == tuple(grid.coordinate(rank))
        for axis, (ranks, place) in told["ranks"].items():
            assert ranks in grid.groups(axis)
            assert ranks[place] == rank
            assert told["sums"][axis] == [float(sum(ranks))]
        assert told["max"] == [3.0, 0.0]
        assert told["source"] == "from 3"
        assert told["gathered"] == [0, 10, 20, 30]


def build_wrong_mesh(rank: int) -> str:
    with pytest.raises(CommError) as caught:
        build_mesh(Grid(pipe=2, tensor=2))
    return str(caught.value)


def test_a_world_of_another_size_is_refused() -> None:
    for text in run_ranks(2, build_wrong_mesh):
        assert text.startswith("world_size = 2 is not pipe 2 x data 1 x tensor 2 = 4;")


def test_a_start_without_torchrun_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(CommError, match=r"WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set .*start with torchrun"):
        init_distributed("gloo", timedelta(seconds=5))


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(CommError, match="LOCAL_RANK = 2 exceeds the last of 2 GPUs"):
        init_distributed("nccl", timedelta(seconds=5), rank=2, world_size=3)


def test_a_pretended_axis_cannot_communicate() -> None:
    with pytest.raises(CommError, match=r"ranks \(0, 1\) has no process group"):
        AxisGroup.pretend(2, 1).connected()


def lose_a_rank(rank: int) -> None:
    if rank == 1:
        os._exit(9)
    barrier()


def raise_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("only rank 1 is wrong")
    barrier()


def test_the_harness_tells_which_rank_failed() -> None:
    with pytest.raises(AssertionError, match="only rank 1 is wrong"):
        run_ranks(2, raise_on_one)
    with pytest.raises(AssertionError, match="9"):
        run_ranks(2, lose_a_rank)
    with pytest.raises(AssertionError, match="still running, killed"):
        run_ranks(2, hang, timeout_seconds=0.5)


def hang(rank: int) -> None:
    import time

    time.sleep(60)


def meet_within(rank: int, minutes: int) -> list[float]:
    with new_groups_wait(timedelta(minutes=minutes)):
        mesh, foreign = build_mesh(Grid(data=2)), torch.distributed.new_group([0, 1])
    later = torch.distributed.new_group([0, 1])
    groups = (mesh.data.connected(), foreign, later)
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() / 60 for group in groups]


def test_groups_made_within_wait_as_long_as_asked_whoever_makes_them() -> None:
    assert run_ranks(2, meet_within, 7) == [[7, 7, 30]] * 2
