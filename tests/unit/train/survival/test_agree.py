"""Faults that become everybody's."""

import pytest

from megatron_tlm.errors import DataError
from megatron_tlm.train.survival.agree import AgreedError, agree
from tests.ranks import run_ranks


def work(rank: int, failing: tuple[int, ...], system: bool) -> str:
    def action() -> int:
        if rank in failing:
            raise OSError(28, "No space left on device", "/full") if system else DataError(f"file {rank} = missing")
        return rank

    try:
        return f"result {agree(action)}"
    except AgreedError as error:
        return f"{error} (may pass)" if error.passing else str(error)


def test_each_rank_keeps_its_own_result() -> None:
    assert run_ranks(2, work, (), False) == ["result 0", "result 1"]


def test_one_ranks_fault_is_told_on_all() -> None:
    assert run_ranks(2, work, (1,), False) == ["rank 1: file 1 = missing"] * 2
    (full, _) = run_ranks(2, work, (1,), True)
    assert (
        full
        == "rank 1: /full = [Errno 28] No space left on device: '/full'; free or mend it and start again (may pass)"
    )


def test_a_fault_without_a_path_says_where_to_look() -> None:
    with pytest.raises(AgreedError, match=r"^a file = \[Errno 28\] full, which one the system does not say; look at"):
        agree(no_room)


def no_room() -> None:
    raise OSError(28, "full")


def test_a_fault_of_all_is_told_once() -> None:
    assert run_ranks(2, work, (0, 1), False) == ["file 0 = missing"] * 2


def test_a_bug_is_not_a_fault_to_agree_on() -> None:
    with pytest.raises(ZeroDivisionError):
        agree(lambda: 1 / 0)


def test_a_process_alone_agrees_with_itself() -> None:
    assert agree(lambda: 3) == 3
