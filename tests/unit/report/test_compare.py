"""Several runs on one page: told apart, and in what they differ."""

from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import pytest

from megatron_tlm.report.compare import compare_page, names_of
from megatron_tlm.report.read import read_run
from tests.unit.report.logs import CONFIG, NOW, start, step, write_logs
from tests.unit.report.test_page import Outline


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["x/tapered/logs", "x/uniform/logs"], ["tapered", "uniform"]),
        (["x/a/1/logs", "x/b/2/logs"], ["a/1", "b/2"]),
        (["x/logs", "x/logs/more"], ["logs", "more"]),
        (["x/run/logs"], ["run/logs"]),
        (["x/run/logs", "x/run/logs"], ["run/logs", "run/logs"]),
    ],
)
def test_folders_are_named_by_what_tells_them_apart(folders: list[str], names: list[str]) -> None:
    assert names_of([Path(folder) for folder in folders]) == names


def test_runs_lie_over_each_other_and_their_differences_are_listed(tmp_path: Path) -> None:
    runs = []
    for name, rate in (("one", "0.001"), ("two", "0.002")):
        config = CONFIG.replace("0.001", rate).replace("here", name)
        steps = [*(step(n) for n in range(1, 9)), {"step": 8, "valid_loss": 4.0}]
        runs.append(read_run(write_logs(tmp_path / name, steps, [start()], config), name))
    made = compare_page(runs, NOW)
    assert "<td>optimizer.lr</td><td>0.001</td><td>0.002</td>" in made
    assert "<td>logging.log_dir</td>" not in made
    assert "one, validation" in made
    assert made.count("<figcaption>Learning rate") == 1
    assert Outline(made).open == []


def test_a_configuration_that_cannot_be_read_differs_in_nothing(tmp_path: Path) -> None:
    runs = [read_run(write_logs(tmp_path / name, [step(1)], [], text), name) for name, text in (("a", "["), ("b", "1"))]
    assert "Differences" not in compare_page(runs, NOW)


def test_a_few_lines_of_yaml_cannot_fill_a_page(tmp_path: Path) -> None:
    bomb = "m:\n a: &a [x, x]\n" + "".join(f" {b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise(ascii_lowercase))
    texts = {"a": bomb, "b": "m:\n z: 2001-99-99\n", "c": "[" * 1000, "d": "m: {z: 1}\n"}
    runs = [read_run(write_logs(tmp_path / name, [step(1)], [], text), name) for name, text in texts.items()]
    made = compare_page(runs, NOW)
    assert "<td>m.z</td>" in made
    assert len(made) < 200_000
