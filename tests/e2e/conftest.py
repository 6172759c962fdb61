"""Machines of their own for a module's tests, and their disks."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.crossing import write_corpus
from tests.namespaces import Node, network


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with network(4) as made:
        yield made


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Four local disks with a copy of one corpus, and the place where each node mounts its own."""
    write_corpus(tmp_path / "local")
    folders = [tmp_path / f"disk-{number}" for number in range(4)]
    for folder in folders:
        shutil.copytree(tmp_path / "local", folder)
    return folders
