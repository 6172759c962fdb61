"""`megatron-tlm study`: checked before anything is started."""

from functools import partial
from pathlib import Path

import pytest

from megatron_tlm.cli import study
from megatron_tlm.errors import ConfigError
from megatron_tlm.study import record
from megatron_tlm.study.record import STUDY_NAME, open_study
from megatron_tlm.study.runner import Runner
from tests.unit.study.studies import ARMS, design, play, write


def test_a_dry_run_prints_budgets_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["run", str(write(tmp_path)), "--output", str(tmp_path / "out"), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1].split() == ["uniform", "35,040", "30,912", "0.227", "384", "64"]
    assert "4 runs to tune (2 rates, 1 seed), then 2 more at the rates chosen: 2,304 tokens" in told
    assert not (tmp_path / "out").exists()


def test_status_of_a_study_that_has_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["status", str(write(tmp_path)), "--output", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["uniform/lr-0.002/seed-1", "waiting"]
    assert told[-1] == "4 waiting, 2 to come"


def test_unequal_arms_are_refused_before_the_first_step(tmp_path: Path) -> None:
    path = write(tmp_path, arms={**ARMS, "wide": {"model": {"ffn_hidden_size": 96}}})
    with pytest.raises(ConfigError, match=r"arms are compared at one budget"):
        study.main(["run", str(path), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["statsu"], r"study statsu is no action; did you mean status\?"),
        (["run", "FILE", "--parallel", "0"], r"--parallel = 0 is below 1; give 1 or more"),
        (["run", "FILE", "--parallel", "0", "--dry-run"], r"--parallel = 0 is below 1; give 1 or more"),
        (["run", "FILE", "--threads-per-run", "x"], r"--threads-per-run = 'x' is not an integer"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], complaint: str) -> None:
    file = str(write(tmp_path))
    given = [file if word == "FILE" else word for word in words]
    with pytest.raises(ConfigError, match=complaint):
        study.main([*given, "--output", str(tmp_path / "out")])


@pytest.mark.parametrize(("fail", "code"), [("", 0), ("cosine", 1)])
def test_the_exit_code_says_whether_runs_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fail: str, code: int
) -> None:
    monkeypatch.setenv("FAIL", fail)
    monkeypatch.setattr(study, "Runner", partial(Runner, command=play))
    arguments = [str(write(tmp_path, seeds=[1], learning_rates=[0.002])), "--output", str(tmp_path / "out")]
    assert study.main(["run", *arguments, "--parallel", "2"]) == code
    last = "1 failed, 1 finished" if code else "2 finished"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert study.main(["run", *arguments, "--retry-failed"]) == code
    assert ("1 failed runs are tried again" in capsys.readouterr().out) == bool(code)


def test_devices_are_not_promised_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "cuda_devices", lambda: ("0", "1", "2", "3"))
    arguments = ["run", str(write(tmp_path, ranks=2)), "--output", str(tmp_path / "out"), "--parallel", "3"]
    with pytest.raises(ConfigError, match=r"--parallel = 3 runs of 2 ranks need 6 devices and there are 4; give"):
        study.main(arguments)
    with pytest.raises(ConfigError, match=r"study.ranks = 8 exceeds the 4 devices of this machine; lower it"):
        study.main(["run", str(write(tmp_path, ranks=8)), "--output", str(tmp_path / "two")])


def test_a_report_goes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = design(tmp_path)
    folder = tmp_path / "there"
    arguments = ["report", str(write(tmp_path)), "--output", str(own.folder), "--report-dir", str(folder)]
    with pytest.raises(
        ConfigError, match=r"study = small: 0 of its runs have begun in .*out, and a report needs 1; start"
    ):
        study.main(arguments)
    assert not folder.exists()
    log = own.run_folder(next(own.tuning_runs())) / "log"
    log.mkdir(parents=True)
    (log / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0, "tokens": 64, "seconds": 0.1}\n')
    assert study.main(arguments) == 0
    assert capsys.readouterr().out.split() == [str(folder / n) for n in ("report.html", "report.md", "results.json")]
    assert "Not complete: 3 waiting, 1 interrupted" in (folder / "report.md").read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--report-dir = .*/file cannot be written \(File exists\); give another"):
        study.main([*arguments[:-1], str(tmp_path / "file")])


@pytest.mark.parametrize("action", ["status", "report"])
def test_a_study_that_is_not_the_folders_is_not_told_of(tmp_path: Path, action: str) -> None:
    own = design(tmp_path)
    open_study(own)
    arguments = [action, str(write(tmp_path, reference="cosine")), "--output", str(own.folder)]
    with pytest.raises(ConfigError, match=r"has changed since it began \(reference uniform is now cosine\)"):
        study.main(arguments)
    (own.folder / STUDY_NAME).write_text("{")
    with pytest.raises(ConfigError, match=r"study.json = 1 bytes that are no JSON .*; put back a copy"):
        study.main(arguments)
    assert sorted(path.name for path in own.folder.iterdir()) == [STUDY_NAME]


def test_other_text_than_the_runs_were_on_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = design(tmp_path)
    open_study(own)
    monkeypatch.setattr(record, "corpus_digests", lambda data: {"corpus": "other"})
    arguments = [str(write(tmp_path)), "--output", str(own.folder)]
    assert study.main(["status", *arguments]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == "4 waiting, 2 to come"
    assert told.err.startswith("note: data.corpus None is now other: not the text that the study's runs were on")
    with pytest.raises(ConfigError, match=r"data\.corpus None is now other"):
        study.main(["run", *arguments])
