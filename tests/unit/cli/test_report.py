"""The command: where the page goes, what is refused."""

from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from tests.unit.report.logs import step, write_logs


def test_the_page_of_a_run_lies_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_logs(tmp_path / "logs", [step(1), step(2)])
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder / 'report.html'}: 0.0")
    made = (folder / "report.html").read_text()
    assert made.startswith("<!doctype html>")
    assert made.endswith("</html>\n")
    assert len(list(folder.iterdir())) == 4


def test_the_page_of_several_runs_lies_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [str(write_logs(tmp_path / name / "logs", [step(1)])) for name in ("a", "b")]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *folders]) == 0
    assert "<h1>2 runs</h1>" in (tmp_path / "report.html").read_text()
    assert main(["report", *folders, "--output", "both.html"]) == 0
    assert (tmp_path / "both.html").exists()


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert f"LOGDIR = {tmp_path} holds 0 files of a run" in capsys.readouterr().err
    folder = write_logs(tmp_path / "logs", [step(1)])
    assert main(["report", str(folder), "--output", str(tmp_path / "none" / "x.html")]) == 2
    assert "x.html cannot be written (No such file or directory); give another file" in capsys.readouterr().err
