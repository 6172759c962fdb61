"""README and docs stay true: flags are of the parsers, links lead to files, anchors to headings."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.cli.main import COMMANDS, MODULES, main
from megatron_tlm.config.document import read_text
from megatron_tlm.config.load import build
from megatron_tlm.config.parser import Parser
from megatron_tlm.config.study import read_study
from megatron_tlm.study.design import Design

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md")))
ACTIONS = {
    "data": ("inspect", "verify", "merge", "split", "sample"),
    "tokenizer": ("train", "inspect"),
    "study": ("run", "status", "report"),
}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_]*(?:-[a-z0-9_]+)*")
LINK = re.compile(r"\]\(([^)\s]+)\)")

# Flags that a page names as another program's: torchrun's, Slurm's, Megatron's where ours is another, tools/bench's.
PEERS = {"--standalone", "--nproc-per-node", "--nodes", "--max-restarts", "--shutdown-timeout", "--signal"} | {
    "--rdzv-backend",
    "--rdzv-conf",
    "--rdzv-id",
    "--local-addr",
    "--master-addr",
    "--master-port",
    "--heterogeneous-layers-config-path",
    "--group-query-attention",
    "--use-distributed-optimizer",
    "--fp16",
    "--exit-on-missing-checkpoint",
    "--multiple-validation-sets",
    "--ckpt-format",
    "--brief",
    "--parameters",
    "--vocabulary",
    "--help",
}


class Seen(Exception):
    """A parser was asked to parse; its flags are known."""


def parse_nothing(parser: Parser, arguments: Sequence[str]) -> None:
    raise Seen(*parser._option_string_actions)


@cache
def flags_of(command: str, action: str | None = None) -> frozenset[str]:
    """Every flag that a command takes, also those that --help keeps to itself."""
    module: Any = import_module(f"megatron_tlm.cli.{MODULES.get(command, command)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse", parse_nothing)
        with pytest.raises(Seen) as seen:
            module.main([action] if action else [])
    return frozenset(seen.value.args)


def all_flags() -> frozenset[str]:
    names = [(command, action) for command in COMMANDS for action in ACTIONS.get(command, (None,))]
    return frozenset().union(*(flags_of(*name) for name in names))


def blocks(page: Path, language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind `megatron-tlm` of each command line of a page."""
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for place, word in enumerate(words):
                if word in ("megatron-tlm", "megatron_tlm"):
                    yield words[place + 1 :]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_named_exists(page: Path) -> None:
    named = {flag.replace("_", "-") for flag in FLAG.findall(page.read_text(encoding="utf-8"))}
    assert named - all_flags() - PEERS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_takes_the_flags_it_is_shown_with(page: Path) -> None:
    for command, *words in commands(page):
        if command.startswith("--"):
            continue
        assert command in COMMANDS
        action = words[0] if command in ACTIONS else None
        assert {word for word in words if FLAG.fullmatch(word)} - {"--help"} <= flags_of(command, action), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_folder_of_the_tree_is_named() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("```\nmegatron_tlm/\n")[1].split("```")[0].split()
    rooms = {f"{path.parent.name}/" for path in (ROOT / "megatron_tlm").glob("*/__init__.py")}
    assert rooms - set(tree) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_yaml_shown_is_a_configuration_or_a_study(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "yaml"):
        if "\nstudy:" in text:
            (tmp_path / "shown.yaml").write_text(text, encoding="utf-8")
            own = Design(read_study(tmp_path / "shown.yaml"), tmp_path)
            assert [own.config(run).training.seed for run in own.tuning_runs()]
        else:
            build([read_text(text, page.name)])


def test_the_readme_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 400


def test_the_plan_it_shows_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    command, _, rest = page.partition("$ megatron-tlm plan --preset 440m ")[2].partition("\n")
    shown = rest.partition("```")[0]
    assert main(["plan", "--preset", "440m", *command.split()]) == 0
    # Lines are folded on the page.
    assert shown.split() == capsys.readouterr().out.split()
