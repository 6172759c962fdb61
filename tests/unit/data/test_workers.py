"""Many processes, one order; no process outlives the iteration."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_tlm.data.workers import AHEAD, ordered_map
from megatron_tlm.errors import DataError


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    def slow_first(item: int) -> tuple[int, bytes]:
        time.sleep(0.05 if item % 5 == 0 else 0)
        return item, bytes(200_000)  # more than a pipe holds

    assert [item for item, _ in ordered_map(slow_first, range(20), workers=workers)] == list(range(20))
    assert list(ordered_map(slow_first, [], workers=workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_bad_item_is_the_one_reported(workers: int) -> None:
    def fail_late_first(item: int) -> int:
        if item == 3:
            time.sleep(0.1)
            raise DataError("3 is bad")
        if item > 3:
            raise DataError(f"{item} is worse")
        return item

    told: list[int] = []
    with pytest.raises(DataError, match="3 is bad"):
        told.extend(ordered_map(fail_late_first, range(10), workers=workers))
    assert told == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_source_comes_after_the_results_before_it(workers: int) -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        raise DataError("the file ends early")

    told: list[int] = []
    with pytest.raises(DataError, match="ends early"):
        told.extend(ordered_map(lambda item: item, source(), workers=workers))
    assert told == [0, 1, 2, 3]


def test_a_dying_worker_ends_the_run() -> None:
    def die(item: int) -> int:
        if item == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(
        DataError, match=r"workers = 2 lost one \(SIGKILL\) at 5; if memory ran out, give fewer --workers"
    ):
        list(ordered_map(die, range(100), workers=2))


def test_workers_end_with_the_iteration() -> None:
    results = ordered_map(lambda _: os.getpid(), range(100), workers=2)
    pid = next(results)
    assert pid != os.getpid()
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_end_when_their_parent_is_killed() -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        for pid in ordered_map(lambda _: os.getpid(), iter(int, 1), workers=2):
            os.write(theirs, pid.to_bytes(8, "little"))
            time.sleep(60)
    worker = int.from_bytes(os.read(ours, 8), "little")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for _ in range(200):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            break
        if "State:\tZ" in Path(f"/proc/{worker}/status").read_text():  # ended, and nobody has asked for its exit code
            break
        time.sleep(0.02)
    else:
        pytest.fail(f"worker {worker} outlived its parent")


def test_a_slow_item_does_not_let_the_others_pile_up() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for item in range(200):
            taken.append(item)
            yield item

    def stall(item: int) -> int:
        time.sleep(0.3 if item == 0 else 0)
        return item

    assert next(ordered_map(stall, source(), workers=2)) == 0
    assert len(taken) <= 2 * AHEAD + 1
