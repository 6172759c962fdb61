"""What TensorBoard still shows once a run was resumed, read from the event files."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_tlm.train.logs.board import Board


def steps_of(folder: Path, tag: str) -> list[int]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


def test_a_resumed_run_keeps_the_history_by_steps_and_by_samples(tmp_path: Path) -> None:
    for first, last in ((0, 6), (4, 8)):
        board = Board(tmp_path, first, 100 * first)
        for step in range(first + 1, last + 1):
            board.scalars(step, 100 * step, {"lm loss": 1.0})
        board.close()
    assert steps_of(tmp_path, "lm loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(tmp_path / "by-samples", "lm loss vs samples") == [100, 200, 300, 400, 500, 600, 700, 800]
