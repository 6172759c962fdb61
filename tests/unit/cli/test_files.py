"""A file that cannot be written is told before anything takes its time, in the same words whatever the flag."""

import os
from pathlib import Path

import pytest

from megatron_tlm.cli.files import check_file, check_json, check_plot, writing
from megatron_tlm.errors import ConfigError


def test_what_can_be_written_is_let_through(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    for name in ("new.json", "old.json", "pipe"):
        assert check_json(str(tmp_path / name)) == tmp_path / name
    assert check_plot(str(tmp_path / "a.PNG")) == tmp_path / "a.PNG"
    assert check_json("-") is check_json(None) is check_plot(None) is None
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "",
            r"--plot = \(empty\) cannot be written: it names no file; give a \.png, \.svg, \.pdf file in a folder that",
        ),
        ("{here}", r"--plot = .* cannot be written: it is a folder; give"),
        ("{here}/a", r"--plot = .*/a cannot be written: '' is none of the endings \.png, \.svg, \.pdf; give"),
        ("{here}/no/a.png", r"--plot = .*/no/a.png cannot be written: there is no folder .*/no; give"),
    ],
)
def test_what_cannot_is_told(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        check_plot(name.format(here=tmp_path))


def test_a_folder_that_may_not_be_written_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(
        ConfigError, match=r"--profile = .* cannot be written: the system does not allow it; give a file"
    ):
        check_file("--profile", str(tmp_path / "a"))


def test_a_disk_that_is_full_is_told_too(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"--json = a cannot be written \(No space left on device\); give another file"
        ),
        writing("--json", Path("a")),
    ):
        raise OSError(28, "No space left on device")
