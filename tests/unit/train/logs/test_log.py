"""Console, metrics.jsonl and TensorBoard of a run, and what a step back takes away."""

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.train.engines.engine import StepResult
from megatron_tlm.train.logs.log import Scale, SilentLog, StepReport, WritingLog

SCALE = Scale(
    tokens_per_step=100,
    samples_per_step=4,
    flops_per_token=3_000_000,
    num_devices=2,
    peak_tflops=None,
    train_steps=5,
)


def report(step: int, loss: float = 1.0) -> StepReport:
    return StepReport(step, 4 * step, 100 * step, StepResult(loss, 0.5), 1e-3, 0.25)


def write(folder: Path, first: int, last: int, scale: Scale = SCALE) -> None:
    log = WritingLog(LoggingConfig(log_interval=2, log_dir=str(folder)), scale, first, "a: 1\n")
    for step in range(first + 1, last + 1):
        log.step(report(step, loss=float(step)))
    log.evaluation(last, 4 * last, 0.5)
    log.close()


def test_a_line_tells_the_means_of_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0, 5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "iteration 4/5 | loss 3.5000 | ppl 33.12 | lr 1.000e-03 | grad norm 0.500 | 400 tokens/s | "
        "600 MFLOP/s per device | 250 ms/step | data wait 0.0 % | ETA 00:00:00"
    )
    assert [line.split(" | ")[0] for line in lines] == [
        "iteration 2/5",
        "iteration 4/5",
        "iteration 5/5",
        "validation at step 5",
    ]


def test_utilisation_is_told_where_the_peak_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = Scale(100, 4, 3_000_000, 2, peak_tflops=0.0012, train_steps=5)
    write(tmp_path, 0, 2, known)
    assert " | MFU 50.0 % | " in capsys.readouterr().out


def test_every_step_and_evaluation_is_an_object(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 3]
    assert records[1] == {
        "step": 2,
        "loss": 2.0,
        "ppl": pytest.approx(7.389, rel=1e-3),
        "grad_norm": 0.5,
        "lr": 1e-3,
        "samples": 8,
        "tokens": 200,
        "seconds": 0.25,
        "data_wait_seconds": 0.0,
        "tokens_per_second": 400.0,
        "tflops_per_device": pytest.approx(0.0006),
        "mfu": None,
    }
    assert records[3] == {"step": 3, "samples": 12, "valid_loss": 0.5, "valid_ppl": pytest.approx(1.6487, rel=1e-3)}
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_a_run_that_goes_back_takes_back_the_later_lines(tmp_path: Path) -> None:
    write(tmp_path, 0, 4)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    write(tmp_path, 2, 3)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 3]


def test_a_run_goes_back_without_its_log_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "log"
    log = WritingLog(LoggingConfig(log_interval=2, log_dir=str(folder)), SCALE, 0, "a: 1\n")
    log.step(report(1))
    folder.rename(tmp_path / "gone")
    log.go_back(0, 0)
    log.step(report(1))
    log.close()
    assert "metrics.jsonl = not written any more (No such file or directory); training goes" in capsys.readouterr().out


def test_tensorboard_has_megatrons_scalars(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    names = set(board.Tags()["scalars"])
    megatron = {"lm loss", "learning-rate", "batch-size", "grad-norm", "world-size", "iteration-time", "throughput"}
    assert megatron | {"lm loss validation", "lm loss validation ppl"} <= names
    assert [(event.step, event.value) for event in board.Scalars("lm loss")] == [(1, 1.0), (2, 2.0)]
    by_samples = EventAccumulator(str(tmp_path / "tensorboard" / "by-samples"))
    by_samples.Reload()
    assert [event.step for event in by_samples.Scalars("lm loss vs samples")] == [4, 8]


def test_every_name_in_tensorboard_is_in_the_docs(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    page = (Path(__file__).parents[4] / "docs" / "monitoring.md").read_text()
    assert [name for name in board.Tags()["scalars"] if f"`{name}`" not in page] == []
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert [key for key in record if key != "step" and f"`{key}`" not in page] == []


def test_a_run_from_scratch_leaves_a_former_runs_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0, 3)
    former = (tmp_path / "metrics.jsonl").read_text()
    write(tmp_path, 0, 1)
    assert f"{tmp_path / 'metrics.jsonl'} of a former run is now metrics.1.jsonl\n" in capsys.readouterr().out
    assert (tmp_path / "metrics.1.jsonl").read_text() == former
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    board = EventAccumulator(str(tmp_path / "tensorboard" / "former-1"))
    board.Reload()
    assert [event.step for event in board.Scalars("lm loss")] == [1, 2, 3]


def events_of(folder: Path) -> list[tuple[str, int]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(record["event"], record["step"]) for record in records]


def test_events_are_a_history_that_a_step_back_does_not_shorten(tmp_path: Path) -> None:
    for first, last in ((0, 4), (2, 5)):
        log = WritingLog(LoggingConfig(log_dir=str(tmp_path)), SCALE, first, "")
        log.event("start", first, ranks=2)
        for step in range(first + 1, last + 1):
            log.step(report(step))
        log.event("checkpoint", last, bytes=7)
        assert (log.lost.steps_again, log.lost.seconds_again) == ((0, 0.0) if first == 0 else (2, 0.5))
        log.close()
    assert events_of(tmp_path) == [("start", 0), ("checkpoint", 4), ("start", 2), ("checkpoint", 5)]
    record = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[1])
    assert record["bytes"] == 7
    assert record["time"] == pytest.approx(time.time(), abs=60)


def test_a_run_that_its_launcher_starts_again_from_scratch_keeps_its_history(tmp_path: Path) -> None:
    for restarted in (False, True):
        log = WritingLog(LoggingConfig(log_dir=str(tmp_path)), SCALE, 0, "", restarted=restarted)
        log.event("start", 0)
        log.step(report(1))
        log.close()
    assert events_of(tmp_path) == [("start", 0), ("start", 0)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert not list(tmp_path.glob("*.1.jsonl"))


def test_a_run_from_scratch_begins_a_new_history(tmp_path: Path) -> None:
    for _ in range(2):
        log = WritingLog(LoggingConfig(log_dir=str(tmp_path)), SCALE, 0, "")
        log.event("start", 0)
        log.step(report(1))
        log.close()
    assert events_of(tmp_path) == [("start", 0)]
    assert (tmp_path / "events.1.jsonl").exists()


def test_a_set_with_a_name_has_lines_and_curves_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, curves = WritingLog(LoggingConfig(log_dir=str(tmp_path)), SCALE, 0, ""), []
    monkeypatch.setattr(log, "_write_scalars", lambda *told: curves.append(told))
    log.evaluation(2, 8, 1.0, "books")
    log.close()
    assert capsys.readouterr().out.splitlines()[0] == "validation books at step 2 | loss 1.0000 | ppl 2.72"
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 2,
        "samples": 8,
        "valid_loss/books": 1.0,
        "valid_ppl/books": pytest.approx(2.718281828),
    }
    ((step, samples, scalars),) = curves
    assert (step, samples, list(scalars)) == (2, 8, ["lm loss validation/books", "lm loss validation/books ppl"])


def test_without_folders_only_the_console_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = WritingLog(LoggingConfig(), SCALE, 0, "")
    log.step(report(1))
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_the_other_ranks_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = SilentLog()
    log.say("x")
    log.step(report(1))
    log.evaluation(1, 4, 1.0)
    log.event("stop", 1, cause="x")
    log.close()
    assert capsys.readouterr().out == ""


def test_a_perplexity_beyond_the_floats_is_null(tmp_path: Path) -> None:
    log = WritingLog(LoggingConfig(log_dir=str(tmp_path)), SCALE, 0, "")
    log.step(report(1, loss=1e4))
    log.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["ppl"] is None
