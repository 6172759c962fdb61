"""`evaluate` under torchrun: one answer for all ranks, told once; a mistake is one sentence."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from tests.e2e.commands import ranks, torchrun
from tests.unit.cli.conftest import save_tiny, tiny_config
from tests.unit.evaluation.tasks import write_tasks

HAS_HARNESS = importlib.util.find_spec("lm_eval") is not None
TASKS = ("--tasks", "tiny_choices", "tiny_texts", "tiny_writing", "--include-path", ".") if HAS_HARNESS else ()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model that reads bytes, a pair, texts and tasks."""
    folder = write_tasks(tmp_path_factory.mktemp("run"))
    save_tiny(folder / "ck", tiny_config(tokenizer_type="ByteTokenizer"))
    with IndexedDatasetWriter(folder / "pair", np.dtype(np.uint16)) as writer:
        writer.add_document(np.random.default_rng(1).integers(0, 257, 500))
    return folder


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """What was measured; the harness also says "N/A"."""
    measured = record | record.get("metrics", {})
    return {key: value for key, value in measured.items() if isinstance(value, int | float)}


def test_two_tensor_ranks_and_two_stages_say_what_one_process_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    words = ("--load", "ck", "--data-path", "pair", "--stride", "8", "--text", "texts.jsonl", *TASKS)
    layout = ("--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2)
    out = torchrun(4, "evaluate", *words, *layout, "--json", "ranks.json", cwd=folder).succeeded().out
    assert out.count("step 10; windows of 32 tokens, stride 8; float32 on cpu, tensor 2 x pipe 2 x data 1") == 1
    assert out.count("tiny_writing") == len(TASKS and ["its row"])
    monkeypatch.chdir(folder)
    assert main(["evaluate", *words, "--json", "one.json"]) == 0
    capsys.readouterr()
    found, wanted = (json.loads((folder / name).read_text()) for name in ("ranks.json", "one.json"))
    assert len(found) == len(wanted) == (5 if TASKS else 2)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["settings"]["layout"] == {"tensor": 2, "pipe": 2, "data": 1}
        assert theirs["settings"]["layout"] == {"tensor": 1, "pipe": 1, "data": 1}
        assert (ours["data"], ours["settings"]["data"]) == (theirs["data"], theirs["settings"]["data"])
        assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-5)


def test_a_mistake_that_all_ranks_see_is_told_once(folder: Path) -> None:
    ended = ranks(2, "evaluate", "--load", "ck", "--data-path", "nowhere", cwd=folder)
    assert [end.code for end in ended] == [2, 2]
    told = "".join(end.err for end in ended)
    assert told.count("megatron-tlm: error: nowhere.idx does not exist") == 1
