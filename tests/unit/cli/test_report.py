"""The command: where the page goes, what is refused."""

import os
import re
import threading
from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from tests.unit.report.logs import step, write_logs


def test_the_page_of_a_run_lies_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_logs(tmp_path / "logs", [step(1), step(2)])
    assert main(["report", str(folder)]) == 0
    assert re.fullmatch(rf"{folder / 'report.html'}: [\d.]+ KiB, open it in a browser\n", capsys.readouterr().out)
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
    assert (
        f"x.html cannot be written: there is no folder {tmp_path / 'none'}; give a file in a folder that is there"
        in capsys.readouterr().err
    )


def test_a_page_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text.encode(encoding)[:100])
        raise OSError(28, "No space left on device")

    folder = write_logs(tmp_path / "logs", [step(1)])
    before = sorted(folder.iterdir())
    monkeypatch.setattr(Path, "write_text", half)
    assert main(["report", str(folder)]) == 2
    assert "report.html cannot be written (No space left on device); give another file" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    folder, pipe = write_logs(tmp_path / "logs", [step(1)]), tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert main(["report", str(folder), "--output", str(pipe)]) == 0
    reader.join(10)
    assert read[0].endswith("</html>\n")
    assert pipe.is_fifo()
