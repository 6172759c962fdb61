"""Reading ahead changes nothing but the waiting."""

import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from megatron_tlm.errors import DataError
from megatron_tlm.train import feed as feed_module
from megatron_tlm.train.feed import AHEAD, Batch, Feed


def numbers(seconds: float = 0.0, read: list[int] | None = None) -> Iterator[Batch]:
    for number in count():
        time.sleep(seconds)
        if read is not None:
            read.append(number)
        yield np.array([[number]])


def test_the_batches_come_in_order_and_not_too_many_ahead() -> None:
    read: list[int] = []
    with Feed(numbers(read=read), pinned=False) as feed:
        assert [int(next(feed)[0, 0]) for _ in range(20)] == list(range(20))
        time.sleep(0.05)
        assert len(read) <= 20 + AHEAD + 1
    assert not any(thread.name == "data" for thread in threading.enumerate())


def test_waiting_is_measured() -> None:
    with Feed(numbers(0.02), pinned=False) as feed:
        for _ in range(5):
            next(feed)
        assert feed.take_wait() > 0.05
        assert feed.take_wait() == 0
    with Feed(numbers(), pinned=False) as feed:
        for _ in range(5):
            time.sleep(0.02)
            next(feed)
        assert feed.take_wait() < 0.05


def test_a_fault_of_the_reader_is_raised_in_its_turn() -> None:
    def broken() -> Iterator[Batch]:
        yield np.array([[0]])
        raise DataError("the file ends early")

    with Feed(broken(), pinned=False) as feed:
        assert next(feed).tolist() == [[0]]
        with pytest.raises(DataError, match="ends early"):
            next(feed)


def test_the_end_is_an_end() -> None:
    with Feed(iter([np.array([[1]])]), pinned=False) as feed:
        assert [int(batch[0, 0]) for batch in feed] == [1]


def test_a_reader_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_LEAVE_SECONDS", 0.1)

    def hangs() -> Iterator[Batch]:
        yield np.array([[0]])
        time.sleep(30)

    begin = time.monotonic()
    with Feed(hangs(), pinned=False) as feed:
        next(feed)
    assert time.monotonic() - begin < 10


@pytest.mark.gpu
def test_pinned_batches_reach_the_device_whole() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with Feed((np.full((8, 4097), number) for number in count()), pinned=True) as feed:
        for number in range(50):
            batch = torch.from_numpy(next(feed))
            assert batch.is_pinned()
            moved = batch.to("cuda", non_blocking=True)
            assert int(moved.min()) == int(moved.max()) == number
