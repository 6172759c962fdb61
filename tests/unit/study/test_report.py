"""A report tells what was found, what is missing, how arms were tuned, and whether they saw the same samples."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from megatron_tlm.study import results as module
from megatron_tlm.study.design import Design
from megatron_tlm.study.parts import Chart, Words
from megatron_tlm.study.report import write_report
from megatron_tlm.study.results import Samples, check_samples, gather
from megatron_tlm.study.runs import FAILED_NAME
from megatron_tlm.study.story import sections
from tests.unit.study.studies import ARMS, design
from tests.unit.study.trainer import loss_of

RATES = {"taper": {"taper_schedule": "cosine", "taper_start": 1.25, "taper_end": 0.75}}
EARLY = {"taper": {"taper_schedule": "wider-early"}}


def finish(own: Design, *, seeds: tuple[int, ...] = (1, 2)) -> None:
    """What the trainer would leave, written at once."""
    for rate in own.file.learning_rates:
        for group, arm in own.pairs:
            for seed in seeds:
                run = type(next(own.tuning_runs()))(group, arm, rate, seed)
                config = {"optimizer": {"lr": rate}, "training": {"seed": seed}}
                config["taper"] = {"taper_schedule": own.config(run).taper.taper_schedule}
                folder = own.run_folder(run) / "log"
                folder.mkdir(parents=True)
                lines = [{"step": k, "loss": loss_of(config, k), "tokens": 64 * k, "seconds": 0.1} for k in range(1, 7)]
                lines.append({"step": 6, "valid_loss": loss_of(config, 6) + 0.1})  # type: ignore[dict-item]
                (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_numbers_of_the_report_are_those_of_the_runs(tmp_path: Path) -> None:
    own = design(tmp_path, arms={**ARMS, "early": EARLY})
    finish(own)
    write_report(gather(own), tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert found["complete"]
    assert {arm["learning_rate"] for arm in arms.values()} == {0.002}
    assert arms["cosine"]["difference"]["mean"] == pytest.approx(-0.1)
    assert arms["early"]["difference"]["mean"] == pytest.approx(-0.05)
    assert arms["uniform"]["difference"] is None
    # 5 + what the seed adds + 1 / (6 + seed) + 0.1 of validation
    assert arms["uniform"]["valid_loss"]["mean"] == pytest.approx((5.1 + 0.02 + 1 / 7 + 5.1 + 0.04 + 1 / 8) / 2)
    assert len(found["runs"]) == 3 * 2 + 3
    assert found["runs"][0]["valid"] == [[6, 384, pytest.approx(5.1 + 0.02 + 1 / 7)]]


def test_what_is_missing_is_said_first(tmp_path: Path) -> None:
    own = design(tmp_path)
    finish(own, seeds=(1,))
    first = next(iter(sections(gather(own)))).parts[0]
    assert isinstance(first, Words)
    assert first.text.startswith("Not complete: 2 waiting, 4 finished. Missing: uniform (1 of 2 seeds), cosine (1 of 2")


def test_ranges_of_a_schedule_make_a_curve(tmp_path: Path) -> None:
    own = design(tmp_path, arms={**ARMS, "narrow": RATES})
    finish(own)
    charts = [part for own_section in sections(gather(own)) for part in own_section.parts if isinstance(part, Chart)]
    ranges = next(chart for chart in charts if chart.file == "ranges")
    assert [(line.name, list(line.xs)) for line in ranges.lines] == [("cosine", [1.25, 1.5]), ("uniform", [1.25, 1.5])]
    two = design(tmp_path)
    assert "ranges" not in {part.file for s in sections(gather(two)) for part in s.parts if isinstance(part, Chart)}


def test_arms_that_read_other_samples_are_not_comparable(tmp_path: Path) -> None:
    own = design(tmp_path)
    finish(own)
    results = gather(own)
    assert results.samples == Samples(0, 6, ())
    differing = type(results)(results.design, results.now, results.arms, Samples(6, 6, (("", 2),)))
    told = [part.text for part in next(iter(sections(differing))).parts if isinstance(part, Words)]
    assert told[-1] == "NOT COMPARABLE: arms read different samples: seed 2."


def test_fingerprints_are_compared_within_group_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = design(tmp_path)
    finish(own)
    finished = list(gather(own).now.results.values())

    def kept(root: Path, step: int) -> dict[str, object] | None:
        if "uniform/lr-0.004" in str(root):
            return None  # its checkpoint is gone
        return {
            "data.seed": str(root).partition("seed-")[2],
            "data.kind": "x" if "cosine/lr-0.002" in str(root) else "y",
        }

    monkeypatch.setattr(module, "_data_of", kept)
    assert check_samples(own, finished) == Samples(5, 6, (("", 1), ("", 2)))
    monkeypatch.setattr(module, "_data_of", lambda root, step: {"data.seed": str(root).partition("seed-")[2]})
    assert check_samples(own, finished) == Samples(6, 6, ())


def test_an_arm_at_the_edge_of_the_grid_is_named(tmp_path: Path) -> None:
    own = design(tmp_path)
    finish(own)
    write_report(gather(own), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "At the edge of the grid, where a better rate may lie beyond it: uniform, cosine." in text
    assert "![Loss over the learning rate](rates.svg)" in text
    assert (tmp_path / "rates.svg").read_text().count("<svg") == 1


def test_what_a_failed_run_said_last_stays_text(tmp_path: Path) -> None:
    own = design(tmp_path)
    finish(own)
    folder = own.run_folder(next(own.tuning_runs()))
    (folder / "log" / "metrics.jsonl").unlink()
    (folder / FAILED_NAME).write_text('{"exit_code": 1, "words": "error <script>alert(1)</script> | x"}')
    for path in write_report(gather(own), tmp_path / "report")[:2]:
        text = path.read_text()
        assert "<script>alert" not in text
        assert "&lt;script" in text


def test_the_page_stands_alone(tmp_path: Path) -> None:
    own = design(tmp_path)
    finish(own)
    write_report(gather(own), tmp_path)
    page = (tmp_path / "report.html").read_text()

    class Seen(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in ("meta", "line", "circle", "path", "input"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("line", "circle", "path"):
                assert self.open.pop() == tag

    seen = Seen()
    seen.feed(page)
    assert seen.open == []
    assert page.count("<figure") == 4
