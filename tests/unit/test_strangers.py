"""Files from a stranger are data: nothing in them runs, whatever they say."""

import ast
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.checkpoint.tensor_file import TensorFile
from megatron_tlm.config.document import read_text
from megatron_tlm.errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[2]
# Calls that run what they are given.
RUNNERS = {"eval", "exec", "compile", "os.system", "os.popen", "runpy.run_path", "yaml.load", "yaml.unsafe_load"}
RUNNERS |= {"yaml.full_load", "yaml.load_all", "torch.hub.load", "torch.compiler.load"}


def runners(source: str) -> list[str]:
    """Calls of a source that run text, a shell, or code that came with a model."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {key.arg: ast.unparse(key.value) for key in node.keywords}
            if name in RUNNERS:
                found.append(f"{node.lineno}: {name}")
            if "True" in (given.get("shell"), given.get("trust_remote_code")):
                found.append(f"{node.lineno}: {ast.unparse(node)[:60]}")
    return found


@pytest.mark.parametrize(
    "line",
    ["eval(text)", "yaml.load(text)", "os.system('x')", "run(x, shell=True)", "AutoModel(trust_remote_code=True)"],
)
def test_a_call_that_runs_what_it_is_given_is_seen(line: str) -> None:
    assert len(runners(line)) == 1
    assert runners("model.eval(); re.compile(x); yaml.safe_load(x)") == []


def test_the_package_runs_nothing_that_it_reads() -> None:
    offences = {
        path.relative_to(ROOT).as_posix(): found
        for path in sorted((ROOT / "megatron_tlm").rglob("*.py"))
        if (found := runners(path.read_text(encoding="utf-8")))
    }
    assert offences == {}


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir"])
def test_a_configuration_makes_no_objects(tag: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.yaml:2: .*could not determine a constructor.*mend that line"):
        read_text(f"data:\n  tokenizer_model: {tag} ['{tmp_path / 'made'}']\n", "run.yaml")
    assert not (tmp_path / "made").exists()


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.folder,)


def test_a_pickle_in_the_place_of_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "made")))
    with pytest.raises(CheckpointError):
        TensorFile(path)
    assert not (tmp_path / "made").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "made").exists()
