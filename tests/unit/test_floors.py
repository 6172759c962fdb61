"""The house rules that imports can break, read off the syntax tree: nothing here runs the package.

Each rule is a function from sources to offences, and each is first shown to see an offence in a source made for it.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "megatron_tlm"

FLOORS = {
    "errors": 0, "config": 0, "plan": 1, "comm": 2, "data": 2, "checkpoint": 2, "layers": 3, "model": 4, "train": 5,
    "report": 2, "export": 6, "evaluation": 6, "doctor": 6, "study": 6, "cli": 7,
}  # fmt: skip

# Being below is not enough: files on disk know nothing of the configuration, ranks nothing of the data.
_BASE = {"errors"}
_PLAN = {"plan", "config", "errors"}
_LAYERS = {"comm"} | _PLAN
_MODEL = {"layers"} | _LAYERS
_TRAIN = {"model", "data", "checkpoint"} | _MODEL
MAY_IMPORT = {
    "errors": set(),
    "config": _BASE,
    "plan": {"config"} | _BASE,
    "comm": {"plan"} | _BASE,
    "data": _PLAN,
    "checkpoint": {"plan"} | _BASE,
    "report": _PLAN,
    "layers": _LAYERS,
    "model": _MODEL,
    "train": _TRAIN,
    "export": {"checkpoint"} | _PLAN,
    "evaluation": {"train"} | _TRAIN,
    "doctor": {"train"} | _TRAIN,
    "study": {"data", "checkpoint", "report"} | _PLAN,
    "cli": {"doctor", "study", "export", "evaluation", "report", "train"} | _TRAIN,
}

# Outside library -> the only rooms that may import it.
ONLY_IN = {"torch.distributed": {"comm"}, "deepspeed": {"train"}}
NO_TORCH = {"errors", "config", "plan", "report"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@dataclass(frozen=True)
class Source:
    """One module: where it is and what it says."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The room under the package; the package's own __init__ and __main__ are its front door, above all floors."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 and parts[1] in FLOORS else ""

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every (line, absolute dotted name) that is imported, names of `from` imports included."""
        package = self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*anchor, base]).rstrip(".")
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


Sources = Mapping[str, Source]


def sources_of(texts: Mapping[str, str]) -> Sources:
    sources = [Source(path, text) for path, text in texts.items()]
    return {source.module: source for source in sources}


def package_sources() -> Sources:
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return sources_of({path.relative_to(ROOT).as_posix(): path.read_text() for path in paths})


def within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


def attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every dotted name that is used, such as `torch.distributed.barrier`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.replace(".", "").replace("_", "").isalnum():
                yield node.lineno, dotted


def upward_imports(sources: Sources) -> list[str]:
    found = []
    for source in sources.values():
        if not source.room:
            continue
        for line, name in source.imports():
            parts = name.split(".")
            if parts[0] != PACKAGE or len(parts) < 2 or parts[1] not in FLOORS or parts[1] == source.room:
                continue
            if parts[1] not in MAY_IMPORT[source.room]:
                found.append(
                    f"{source.path}:{line} imports {name} (floor {FLOORS[parts[1]]}) "
                    f"from {source.room} (floor {FLOORS[source.room]})"
                )
    return found


def misplaced_libraries(sources: Sources) -> list[str]:
    found = []
    for source in sources.values():
        for line, name in source.imports():
            if source.room in NO_TORCH and within(name, "torch"):
                found.append(f"{source.path}:{line} imports {name}, {source.room} has no torch")
            found += [
                f"{source.path}:{line} imports {name}, only {', '.join(rooms)} may"
                for library, rooms in ONLY_IN.items()
                if within(name, library) and source.room not in rooms
            ]
        if source.room not in ONLY_IN["torch.distributed"]:
            found += [
                f"{source.path}:{line} uses {name}, only comm may"
                for line, name in attributes(source.tree)
                if name == "torch.distributed"
            ]
    return found


def import_cycles(sources: Sources) -> list[str]:
    """Cycles of modules, imports inside functions and TYPE_CHECKING blocks included: hiding one does not open it."""
    edges: dict[str, dict[str, int]] = {}
    for source in sources.values():
        targets = edges.setdefault(source.module, {})
        for line, name in source.imports():
            # `from package.room import name`: name is a module, or something inside package.room.
            target = name if name in sources else name.rpartition(".")[0]
            if target in sources and target != source.module:
                targets.setdefault(target, line)
    found, done = [], set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            cycle = [*trail[trail.index(module) :], module]
            steps = [f"{sources[a].path}:{edges[a][b]}" for a, b in pairwise(cycle)]
            found.append(f"{' -> '.join(cycle)} ({', '.join(steps)})")
        elif module not in done:
            for target in edges[module]:
                visit(target, (*trail, module))
            done.add(module)

    for module in edges:
        visit(module, ())
    return found


def process_wide_names(sources: Sources) -> list[str]:
    """`global` statements and star imports: state or names that come from nowhere in sight."""
    found = []
    for source in sources.values():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Global):
                found.append(f"{source.path}:{node.lineno} global {', '.join(node.names)}")
            elif isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                found.append(f"{source.path}:{node.lineno} from {node.module} import *")
    return found


def unpickling(sources: Sources) -> list[str]:
    """Whatever would run code found in a file: pickle's family, `torch.load` and `np.load` without their locks."""
    found = []
    for source in sources.values():
        found += [
            f"{source.path}:{line} imports {name}"
            for line, name in source.imports()
            if name.split(".")[0] in UNPICKLERS
        ]
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            given = {key.arg: ast.unparse(key.value) for key in node.keywords}
            if function == "torch.load" and given.get("weights_only") != "True":
                found.append(f"{source.path}:{node.lineno} torch.load without weights_only=True")
            if given.get("allow_pickle") == "True":
                found.append(f"{source.path}:{node.lineno} {function}(allow_pickle=True)")
    return found


Rule = Callable[[Sources], list[str]]

OFFENCES: list[tuple[Rule, dict[str, str], str]] = [
    (
        upward_imports,
        {"megatron_tlm/plan/taper.py": "import math\nfrom megatron_tlm.layers.norm import RMSNorm\n"},
        "megatron_tlm/plan/taper.py:2 imports megatron_tlm.layers.norm.RMSNorm (floor 3) from plan (floor 1)",
    ),
    (
        upward_imports,
        {"megatron_tlm/data/loader.py": "def f():\n    from megatron_tlm import checkpoint\n"},
        "megatron_tlm/data/loader.py:2 imports megatron_tlm.checkpoint (floor 2) from data (floor 2)",
    ),
    (
        upward_imports,
        {"megatron_tlm/checkpoint/save.py": "from ..config import schema\n"},
        "megatron_tlm/checkpoint/save.py:1 imports megatron_tlm.config.schema (floor 0) from checkpoint (floor 2)",
    ),
    (
        misplaced_libraries,
        {"megatron_tlm/config/load.py": "import torch.nn as nn\n"},
        "megatron_tlm/config/load.py:1 imports torch.nn, config has no torch",
    ),
    (
        misplaced_libraries,
        {"megatron_tlm/layers/linear.py": "from torch import distributed\n"},
        "megatron_tlm/layers/linear.py:1 imports torch.distributed, only comm may",
    ),
    (
        misplaced_libraries,
        {"megatron_tlm/model/stage.py": "import torch\ntorch.distributed.barrier()\n"},
        "megatron_tlm/model/stage.py:2 uses torch.distributed, only comm may",
    ),
    (
        misplaced_libraries,
        {"megatron_tlm/cli/main.py": "import deepspeed\n"},
        "megatron_tlm/cli/main.py:1 imports deepspeed, only train may",
    ),
    (
        import_cycles,
        {
            "megatron_tlm/plan/a.py": "from megatron_tlm.plan import b\n",
            "megatron_tlm/plan/b.py": "def f():\n    from megatron_tlm.plan.a import g\n",
        },
        "megatron_tlm.plan.a -> megatron_tlm.plan.b -> megatron_tlm.plan.a "
        "(megatron_tlm/plan/a.py:1, megatron_tlm/plan/b.py:2)",
    ),
    (
        process_wide_names,
        {"megatron_tlm/comm/groups.py": "def f():\n    global GROUP\n    GROUP = 1\n"},
        "megatron_tlm/comm/groups.py:2 global GROUP",
    ),
    (
        process_wide_names,
        {"megatron_tlm/comm/groups.py": "from math import *\n"},
        "megatron_tlm/comm/groups.py:1 from math import *",
    ),
    (
        unpickling,
        {"megatron_tlm/checkpoint/load.py": "import pickle\n"},
        "megatron_tlm/checkpoint/load.py:1 imports pickle",
    ),
    (
        unpickling,
        {"megatron_tlm/checkpoint/load.py": "torch.load(path, weights_only=False)\n"},
        "megatron_tlm/checkpoint/load.py:1 torch.load without weights_only=True",
    ),
    (
        unpickling,
        {"megatron_tlm/data/samples.py": "np.load(path, allow_pickle=True)\n"},
        "megatron_tlm/data/samples.py:1 np.load(allow_pickle=True)",
    ),
]


@pytest.mark.parametrize(("rule", "texts", "offence"), OFFENCES)
def test_the_rule_sees_an_offence(rule: Rule, texts: dict[str, str], offence: str) -> None:
    assert rule(sources_of(texts)) == [offence]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in OFFENCES), ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    offences = rule(package_sources())
    assert not offences, "\n" + "\n".join(offences)


def test_every_room_has_a_floor() -> None:
    rooms = {path.stem for path in (ROOT / PACKAGE).iterdir() if path.is_dir() or path.suffix == ".py"}
    unknown = {room for room in rooms if not room.startswith("__")} - FLOORS.keys()
    assert not unknown, f"{sorted(unknown)} stand on no floor; add them to FLOORS and MAY_IMPORT"


def test_rooms_import_only_lower_floors() -> None:
    """The table itself: no allowance goes up or sideways, but for config, which raises errors."""
    for room, allowed in MAY_IMPORT.items():
        sideways = {below for below in allowed if FLOORS[below] >= FLOORS[room]}
        assert sideways <= {"errors"}, f"{room} may import {sorted(sideways)}"


def test_files_fit_on_a_few_screens() -> None:
    """A file past 450 lines holds two rooms."""
    folders = [PACKAGE, "tests", "tools", "examples"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    long = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in paths}
    assert not {path: lines for path, lines in long.items() if lines > 450}
