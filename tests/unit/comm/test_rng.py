import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.comm.rng import hashed_seed, shard_stream, step_seed

CPU = torch.device("cpu")


def test_step_seeds_differ_in_every_argument_and_fit_torch() -> None:
    seeds = {
        step_seed(seed, step, data, stage)
        for seed in (1, 2, 12)
        for step in range(12)
        for data in range(3)
        for stage in range(3)
    }
    assert len(seeds) == 3 * 12 * 3 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.manual_seed(max(seeds))


def test_hashed_seed_never_changes_between_versions() -> None:
    # Initial weights and resumed runs hang on it.
    assert hashed_seed("init", 1234, "embedding.weight") == 8227085558917974096


def draw_in_shard(rank: int, size: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    axis = AxisGroup.pretend(size, rank)
    with shard_stream(axis, CPU):
        first = torch.rand(4)
    with shard_stream(axis, CPU):
        second = torch.rand(4)
    return first, second, torch.rand(4)


def test_shards_draw_differently_and_leave_the_common_stream_equal() -> None:
    (first, second, after), (other, _, after_other) = draw_in_shard(0), draw_in_shard(1)
    assert not torch.equal(first, other)
    assert not torch.equal(first, second)
    assert torch.equal(after, after_other)
    assert all(torch.equal(a, b) for a, b in zip(draw_in_shard(1), (other, _, after_other), strict=True))


def test_the_common_stream_is_restored_after_an_error() -> None:
    torch.manual_seed(5)
    try:
        with shard_stream(AxisGroup.pretend(2, 1), CPU):
            raise RuntimeError
    except RuntimeError:
        after = torch.rand(4)
    torch.manual_seed(5)
    with shard_stream(AxisGroup.pretend(2, 0), CPU):
        pass
    assert torch.equal(after, torch.rand(4))


def test_one_rank_alone_draws_from_the_common_stream() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with shard_stream(AxisGroup.single(), CPU):
        assert torch.equal(torch.rand(4), expected)
