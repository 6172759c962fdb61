"""The shipped studies of the paper's experiments: each parses, every arm can be built, and budgets are equal."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_tlm.config.study import read_study
from megatron_tlm.study import design as designs
from megatron_tlm.study.design import Design
from megatron_tlm.study.status import budget_lines

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "paper"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.yaml") if "results" not in path.parts)
RANGES = ("1.25", "1.375", "1.5", "1.625", "1.75")
CELLS = {"uniform", *(f"{schedule}-{start}" for schedule in ("cosine", "linear", "sigmoid") for start in RANGES)}


@pytest.fixture(autouse=True)
def _tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that prepare.sh trains."""
    monkeypatch.setattr(designs, "load_tokenizer", lambda kind, model: SimpleNamespace(vocab_size=2048))


def study(name: str) -> Design:
    return Design(read_study(FOLDER / name), Path("out"))


def test_every_experiment_has_a_file_for_a_cluster_and_one_for_a_cpu() -> None:
    names = ["architectures.yaml", "piecewise.yaml", "schedule-range.yaml"]
    assert sorted(FILES) == sorted([*names, *(f"cpu/{name}" for name in names), "cpu/cosine-range.yaml"])


@pytest.mark.parametrize("name", FILES)
def test_arms_can_be_built_at_equal_budgets(name: str) -> None:
    own = study(name)
    assert len(own.budgets) == len(own.file.arms) * len(own.file.groups)  # unequal ones raise
    for pair, budget in own.budgets.items():
        reference = own.budgets[pair[0], own.file.reference]
        assert sum(budget.widths) == sum(reference.widths)
        assert len(set(reference.widths)) == 1
    if name.startswith("cpu/"):
        assert all(0.9e6 < budget.non_embedding < 3e6 for budget in own.budgets.values())
    else:
        assert any("hours of one h100" in line for line in budget_lines(own))


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("piecewise.yaml", {"uniform", "wider-early", "wider-middle", "wider-late"}),
        ("cpu/piecewise.yaml", {"uniform", "wider-early", "wider-late", "cosine"}),
        ("schedule-range.yaml", CELLS),
        ("cpu/schedule-range.yaml", CELLS),
        ("cpu/cosine-range.yaml", {"uniform", "cosine-1.25", "cosine-1.5", "cosine-1.75"}),
        ("architectures.yaml", {"uniform", "cosine"}),
        ("cpu/architectures.yaml", {"uniform", "cosine"}),
    ],
)
def test_arms_are_the_papers(name: str, arms: set[str]) -> None:
    own = study(name)
    assert set(own.file.arms) == arms
    for (_, arm), budget in own.budgets.items():
        if "-1." in arm:
            start, mean = float(arm.partition("-")[2]), sum(budget.widths) / len(budget.widths)
            assert (budget.widths[0], budget.widths[-1]) == (start * mean, (2 - start) * mean)
            assert list(budget.widths) == sorted(budget.widths, reverse=True)


@pytest.mark.parametrize("name", ["architectures.yaml", "cpu/architectures.yaml"])
def test_four_architectures_at_two_scales(name: str) -> None:
    own = study(name)
    shapes = {group.name: own.config(own.example(group.name, "uniform")).architecture for group in own.file.groups}
    kinds = {group: (shape.mixer, len(shape.cms_periods)) for group, shape in shapes.items()}
    assert len(kinds) == 8
    for group, kind in kinds.items():
        expected = {
            "transformer": ("attention", 0),
            "gated": ("gated_attention", 0),
            "hope": ("attention", 3),
            "titans": ("titans_lmm", 0),
        }
        assert kind == expected[group.partition("-")[0]]


@pytest.mark.parametrize("name", ["piecewise.yaml", "schedule-range.yaml"])
def test_a_run_has_the_papers_tokens(name: str) -> None:
    assert {round(budget.tokens / 1e9) for budget in study(name).budgets.values()} == {31}  # 60,000 steps of 2^19


def test_the_large_scales_have_the_papers_tokens() -> None:
    tokens = {group: round(budget.tokens / 1e9) for (group, _), budget in study("architectures.yaml").budgets.items()}
    assert {group: count for group, count in tokens.items() if "760m" in group} == dict.fromkeys(
        ("transformer-760m", "gated-760m", "hope-760m", "titans-760m"), 52
    )
    assert {count for group, count in tokens.items() if "1.3b" in group} == {105}
