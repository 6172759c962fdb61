"""Runs are started in order, several at once; whatever ends a study, it goes on to the same report."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from megatron_tlm.errors import ConfigError
from megatron_tlm.study.choice import snapshot
from megatron_tlm.study.design import Design
from megatron_tlm.study.report import write_report
from megatron_tlm.study.results import gather
from megatron_tlm.study.runner import Resources, forget_failures, train_command
from megatron_tlm.study.runs import FAILED_NAME, State, is_locked, read_run, try_lock
from tests.unit.study.studies import design, files_of, play, runner, write

DRIVER = Path(__file__).with_name("studies.py")
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIL", "HANG", "STOP_AT"):
        monkeypatch.delenv(name, raising=False)


def report_of(own: Design, folder: Path) -> dict[str, bytes]:
    write_report(gather(own), folder)
    return files_of(folder)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The report of a study that nothing interrupted."""
    folder = tmp_path_factory.mktemp("uncut")
    own = design(folder)
    assert runner(own).run()
    return report_of(own, folder / "report")


def wait_for(seen: "Iterator[bool]") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not next(seen):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def states(own: Design) -> Mapping[str, State]:
    return {run.path: result.state for run, result in snapshot(own).results.items()}


def test_tuning_comes_first_then_seed_by_seed_at_the_best_rate(tmp_path: Path) -> None:
    own, told = design(tmp_path), []
    assert runner(own, told.append, parallel=1).run()
    started = [line.split(":")[0] for line in told if line.endswith("started")]
    tuning = [f"{arm}/lr-{rate}/seed-1" for rate in ("0.002", "0.004") for arm in ("uniform", "cosine")]
    rest = [f"{arm}/lr-0.002/seed-2" for arm in ("uniform", "cosine")]
    assert started == tuning + rest
    assert set(states(own).values()) == {State.FINISHED}


def test_a_finished_study_starts_nothing(tmp_path: Path) -> None:
    own, told = design(tmp_path, seeds=[1], learning_rates=[0.002]), []
    assert runner(own).run()
    assert runner(own, told.append).run()
    assert told == []


def test_runs_at_once_are_as_many_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANG", "seed-1")
    own = design(tmp_path)
    with study_process(tmp_path) as process:
        wait_for(iter(lambda: sum(state is State.RUNNING for state in states(own).values()) == 2, None))
        time.sleep(0.5)
        assert sum(state is State.RUNNING for state in states(own).values()) == 2
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


class study_process:
    """A study in a process of its own, as studies.py starts it; what is left of it is killed."""

    def __init__(self, folder: Path) -> None:
        self._command = [sys.executable, str(DRIVER), str(write(folder)), str(folder / "out")]

    def __enter__(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": str(DRIVER.parents[3])}
        self._process = subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL)
        return self._process

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "asked to stop"])
@pytest.mark.parametrize("place", ["cosine/lr-0.004/seed-1", "uniform/lr-0.002/seed-2"], ids=["tuning", "a seed"])
def test_interrupted_at_any_point_and_continued_gives_the_identical_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncut: dict[str, bytes], place: str, number: signal.Signals
) -> None:
    monkeypatch.setenv("HANG", place)
    (tmp_path / "cut").mkdir()
    own = design(tmp_path / "cut")
    run_folder = own.folder / "runs" / place
    with study_process(tmp_path / "cut") as process:
        wait_for(iter(lambda: is_half_done(own, place), None))
        os.kill(process.pid, number)
        process.wait(PATIENCE_SECONDS)
        wait_for(iter(lambda: not is_locked(run_folder), None))
    assert states(own)[place] is State.INTERRUPTED
    monkeypatch.delenv("HANG")
    told: list[str] = []
    assert runner(own, told.append).run()
    assert any(line.startswith(f"{place}: goes on, it had come to step 3") for line in told)
    assert report_of(own, tmp_path / "report") == uncut


def is_half_done(own: Design, place: str) -> bool:
    found = [result for run, result in snapshot(own).results.items() if run.path == place]
    return bool(found) and found[0].step == 3


def test_a_signal_in_the_midst_of_a_start_reaches_the_run_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, told = design(tmp_path), []
    monkeypatch.setenv("HANG", "seed-1")
    waiting = runner(own, told.append)

    def play_and_be_told_to_stop(path: Path, ranks: int) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return play(path, ranks)

    waiting.command = play_and_be_told_to_stop
    assert not waiting.run()
    assert [line.split(": ")[1][:11] for line in told] == ["started", "interrupted"]
    assert set(states(own).values()) <= {State.WAITING, State.INTERRUPTED}


def test_a_failed_arm_is_shown_as_failed_and_the_rest_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "cosine")
    own = design(tmp_path)
    assert runner(own).run()
    found = states(own)
    assert {path for path, state in found.items() if state is State.FAILED} == {p for p in found if "cosine" in p}
    assert found["uniform/lr-0.002/seed-2"] is State.FINISHED
    text = report_of(own, tmp_path / "report")["report.md"].decode()
    assert "FAILED: cosine/lr-0.002/seed-1" in text
    assert "loss = nan is not finite" in text
    assert "FAILED: cosine finished at no learning rate" in text
    assert "| cosine | failed |  |" in text  # of two seeds the second was never run
    row = next(line for line in text.splitlines() if line.startswith("| cosine |"))
    assert row.rstrip("| ").endswith("failed")


def test_one_failed_rate_is_not_chosen_and_stays_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "cosine lr-0.002")
    own = design(tmp_path)
    assert runner(own).run()
    assert snapshot(own).rates == {("", "uniform"): 0.002, ("", "cosine"): 0.004}
    text = report_of(own, tmp_path / "report")["report.md"].decode()
    assert "| cosine | failed | 5.3629* |" in text


@pytest.mark.parametrize("record", ["", "{}", "[]"])
def test_a_failure_whose_record_is_damaged_stays_a_failure(tmp_path: Path, record: str) -> None:
    own, told = design(tmp_path, seeds=[1], learning_rates=[0.002]), []
    folder = own.run_folder(next(own.tuning_runs()))
    folder.mkdir(parents=True)
    (folder / FAILED_NAME).write_text(record)
    result = read_run(own, next(own.tuning_runs()))
    assert (result.state, result.reason) == (State.FAILED, "why is not known, failed.json is damaged")
    assert runner(own, told.append).run()
    assert not any("uniform" in line for line in told)


def test_failed_runs_are_tried_again_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "cosine lr-0.004")
    own = design(tmp_path)
    assert runner(own).run()
    monkeypatch.delenv("FAIL")
    told: list[str] = []
    assert runner(own, told.append).run()
    assert told == []
    assert forget_failures(own) == 1
    assert runner(own, told.append).run()
    assert states(own)["cosine/lr-0.004/seed-1"] is State.FINISHED


def test_a_run_that_ends_early_goes_on_and_one_that_gets_nowhere_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOP_AT", "4")  # leaves with code 0 after step 4; from there it does not come to 4 again
    own = design(tmp_path, seeds=[1], learning_rates=[0.002])
    assert runner(own).run()
    assert set(states(own).values()) == {State.FINISHED}
    monkeypatch.setenv("FAIL", "seed-5")
    stuck = design(tmp_path, seeds=[5], learning_rates=[0.002])
    assert runner(stuck).run()
    result = read_run(stuck, next(stuck.tuning_runs()))
    assert result.state is State.FAILED
    assert result.reason == "exit code 2: megatron-tlm: error: rank 0: step 2: loss = nan is not finite"


def test_a_run_that_another_study_has_in_hand_is_left_to_it(tmp_path: Path) -> None:
    own, told = design(tmp_path, seeds=[1], learning_rates=[0.002]), []
    held = next(own.tuning_runs())
    own.run_folder(held).mkdir(parents=True)
    lock = try_lock(own.run_folder(held))
    assert lock is not None
    assert states(own)[held.path] is State.RUNNING
    other = runner(own, told.append)
    assert other._fill()  # it waits, and starts what is free
    assert [line for line in told if held.path in line] == []
    lock.close()
    assert other.run()
    assert set(states(own).values()) == {State.FINISHED}


def test_a_run_that_another_study_has_finished_meanwhile_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, told = design(tmp_path, seeds=[1], learning_rates=[0.002]), []
    late = runner(own, told.append)
    before = snapshot(own)
    assert runner(own).run()
    monkeypatch.setattr("megatron_tlm.study.runner.snapshot", lambda design: before)
    assert late._fill()  # it looks again
    assert (told, late._slots) == ([], {})


def test_two_studies_at_once_share_runs_out_and_one_ends_what_the_other_was_killed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncut: dict[str, bytes]
) -> None:
    place = "cosine/lr-0.002/seed-1"
    (tmp_path / "cut").mkdir()
    own = design(tmp_path / "cut")
    monkeypatch.setenv("HANG", place)
    with study_process(tmp_path / "cut") as killed:
        wait_for(iter(lambda: is_half_done(own, place), None))
        monkeypatch.delenv("HANG")
        with study_process(tmp_path / "cut") as other:
            # All but what the first has in hand, and what waits for it.
            wait_for(iter(lambda: list(states(own).values()).count(State.FINISHED) >= 3, None))
            time.sleep(0.5)
            assert other.poll() is None
            assert states(own)[place] is State.RUNNING
            os.kill(killed.pid, signal.SIGKILL)
            assert other.wait(PATIENCE_SECONDS) == 0
    assert set(states(own).values()) == {State.FINISHED}
    assert report_of(own, tmp_path / "report") == uncut
    told = [path.read_text().count("error") for path in own.folder.rglob("output.txt")]
    assert told == [0] * 6


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    own = design(tmp_path, seeds=[1], learning_rates=[0.002])
    assert runner(own).run()
    (own.run_folder(next(own.tuning_runs())) / "log" / "metrics.jsonl").unlink()
    longer = design(tmp_path, seeds=[1], learning_rates=[0.002], base={"optimizer": {"lr": 1e-3, "weight_decay": 0.5}})
    with pytest.raises(ConfigError, match=r"= another run \(optimizer.min_lr .*weight_decay 0.1 is now 0.5"):
        runner(longer).run()


def test_several_ranks_start_under_torchrun_and_devices_are_shared_out() -> None:
    command = train_command(Path("c.yaml"), 4)
    assert command[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    assert train_command(Path("c.yaml"), 1)[1:] == ["-m", "megatron_tlm", "train", "--config", "c.yaml"]
    resources = Resources(2, 3, ("0", "1", "2", "3"))
    assert resources.environment(1, 2) == {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert Resources(2, 3).environment(0, 2) == {"OMP_NUM_THREADS": "3"}
