"""Flat ranges of local tensors as boxes of global ones, and who writes what all ranks hold."""

from itertools import pairwise
from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.shards import shard
from megatron_tlm.train.saving.state import Fragment, fragment_boxes, share_out


@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 5),
    degree=st.integers(1, 3),
    cuts=st.sets(st.integers(1, 40), max_size=3),
    dim=st.sampled_from([0, 1, None]),
)
def test_the_ranges_of_all_ranks_fill_a_tensor_once(
    rows: int, columns: int, degree: int, cuts: set[int], dim: int | None
) -> None:
    """Every element of a global tensor, numbered, comes back from the flat pieces of padded local tensors."""
    if dim == 1:
        columns *= degree
    shape = (rows, columns)
    padded = -(-rows // degree) * degree if dim == 0 else None
    spec = ParameterSpec("w", shape, split_dim=dim, parts=shape[dim or 0], padded=dim == 0)
    whole = torch.arange(float(prod(shape))).view(shape)
    found = torch.full(shape, torch.nan)
    for rank in range(degree if dim is not None else 1):
        held = shard(spec, degree, rank, padded)
        local = torch.full(held.local_shape, -1.0)
        local[tuple(slice(n) for n in held.size)] = whole[
            tuple(slice(a, a + n) for a, n in zip(held.offset, held.size, strict=True))
        ]
        flat = local.view(-1)
        borders = [0, *sorted(cut for cut in cuts if cut < len(flat)), len(flat)]
        for start, stop in pairwise(borders):
            fragment = Fragment("w", "exp_avg", start, flat[start:stop], shared=False)
            for offset, values in fragment_boxes(fragment, held):
                box = tuple(slice(a, a + n) for a, n in zip(offset, values.shape, strict=True))
                assert found[box].isnan().all()
                found[box] = values
    assert torch.equal(found, whole)


def test_boxes_are_views_that_a_resume_can_fill() -> None:
    flat = torch.zeros(5)
    spec = ParameterSpec("w", (3, 4))
    for _, values in fragment_boxes(Fragment("w", "weight", 3, flat, shared=False), shard(spec, 1, 0)):
        values.fill_(1.0)
    assert flat.tolist() == [1.0] * 5


def test_what_all_hold_is_written_evenly_and_once() -> None:
    sizes = {("a", "weight"): 10, ("b", "weight"): 6, ("c", "weight"): 5, ("d", "weight"): 1}
    writer = share_out(sizes, 2)
    assert set(writer) == set(sizes)
    loads = [sum(size for key, size in sizes.items() if writer[key] == rank) for rank in range(2)]
    assert loads == [11, 11]
    assert set(share_out(sizes, 1).values()) == {0}
