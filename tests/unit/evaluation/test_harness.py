"""lm-evaluation-harness on our model: its own request types, answered as logits by hand answer them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_tlm.cli.main import main
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import ConfigError, DataError
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.model.stage import Stage
from tests.unit.cli.conftest import save_tiny, tiny_config
from tests.unit.evaluation.tasks import QUESTIONS, STARTS, TEXTS, write_tasks

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install 'megatron_tlm[eval]'")
from lm_eval.api.instance import Instance

from megatron_tlm.evaluation import harness

LENGTH, EOD = 32, ByteTokenizer.eod_id


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_tiny(folder, tiny_config(tokenizer_type="ByteTokenizer"))
    return folder


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def adapter(root: Path, batch: int = 3) -> Any:
    return harness.HarnessModel(load_model(root).model, ByteTokenizer(), LENGTH, batch)


def asked(kind: str, *arguments: Any) -> Any:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@torch.no_grad()
def by_hand(stage: Stage, ids: list[int], scored: int) -> tuple[float, bool]:
    """Log-probability of the last ids behind at most 32, and whether each is the argmax."""
    ids = ids[-(LENGTH + 1) :]
    logits = stage(torch.tensor([ids[:-1]]))[0, -scored:, :257].double()
    labels = torch.tensor(ids[-scored:])
    nats = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return -float(nats), bool((logits.argmax(dim=-1) == labels).all())


def pairs() -> Iterator[tuple[str, str]]:
    for question in QUESTIONS:
        for choice in question["choices"]:
            yield question["q"], choice


@pytest.mark.parametrize("batch", [1, 4])
def test_likelihoods_are_those_of_the_logits(batch: int, root: Path) -> None:
    """Long contexts lose their front, as the harness demands; an empty one is the end-of-document token."""
    model, stage = adapter(root, batch), load_model(root).stage
    found = model.loglikelihood([asked("loglikelihood", *pair) for pair in pairs()])
    for (context, choice), (value, greedy) in zip(pairs(), found, strict=True):
        front = list(context.encode()) or [EOD]
        wanted, hit = by_hand(stage, [*front, *choice.encode()], len(choice.encode()))
        assert value == pytest.approx(wanted, rel=1e-5)
        assert greedy == hit


def test_the_greedy_continuation_is_known_as_such(root: Path) -> None:
    stage = load_model(root).stage
    best = bytes(generate(stage, list(b"the sea"), max_new_tokens=1, eod_id=None, num_ids=128)).decode()
    logits = stage(torch.tensor([[*b"the sea"]]))[0, -1, :257]
    (_, greedy), (_, other) = adapter(root).loglikelihood(
        [asked("loglikelihood", "the sea", best), asked("loglikelihood", "the sea", "~" if best != "~" else "}")]
    )
    assert greedy == (int(logits.argmax()) == ord(best))
    assert not other


def test_an_empty_continuation_is_certain_and_a_blank_context_is_a_context(root: Path) -> None:
    empty, both = adapter(root).loglikelihood([asked("loglikelihood", "a", ""), asked("loglikelihood", "", "")])
    assert empty == both == (0.0, True)
    ((blank, _),) = adapter(root).loglikelihood([asked("loglikelihood", " ", "a")])
    assert blank == pytest.approx(by_hand(load_model(root).stage, [EOD, *b" a"], 2)[0], rel=1e-5)


def test_a_continuation_longer_than_the_model_is_told(root: Path) -> None:
    with pytest.raises(DataError, match="continuation = 40 tokens exceeds the 32 that the model takes"):
        adapter(root).loglikelihood([asked("loglikelihood", "a", "b" * 40)])


def rolled(stage: Stage, text: str) -> float:
    ids, nats, done = [EOD, *text.encode()], 0.0, 1
    while done < len(ids):
        scored = min(LENGTH, len(ids) - done)
        done += scored
        nats += by_hand(stage, ids[:done], scored)[0]
    return nats


@pytest.mark.parametrize("batch", [1, 8])
def test_a_whole_text_is_rolled_over(batch: int, root: Path) -> None:
    found = adapter(root, batch).loglikelihood_rolling([asked("loglikelihood_rolling", text) for text in TEXTS])
    stage = load_model(root).stage
    assert found == pytest.approx([rolled(stage, text) for text in TEXTS], rel=1e-5)
    assert found[2] == 0.0


def written(stage: Stage, start: str, stops: tuple[str, ...], count: int) -> str:
    """Greedy, one token after the other, from what of the start leaves room for the rest."""
    ids = list(start.encode())[-(LENGTH - count) :]
    new = list(generate(stage, ids, max_new_tokens=count, eod_id=EOD, num_ids=257))
    text = bytes(ids + new).decode(errors="replace")[len(bytes(ids).decode(errors="replace")) :]
    for stop in stops:
        text = text.split(stop)[0]
    return text


@pytest.mark.parametrize("batch", [1, 8])
def test_text_is_written_up_to_a_stop_string(batch: int, root: Path) -> None:
    stage = load_model(root).stage
    wanted = [written(stage, start, (), 8) for start in STARTS]
    stop = wanted[0][2:4]
    wishes = [{"until": [stop], "max_gen_toks": 8}, {"until": stop, "max_gen_toks": 8}, {"max_gen_toks": 8}]
    requests = [asked("generate_until", start, wish) for start, wish in zip(STARTS, wishes, strict=True)]
    requests += [asked("generate_until", STARTS[0], wishes[2])]
    found = adapter(root, batch).generate_until(requests)
    assert found == [wanted[0].split(stop)[0], wanted[1].split(stop)[0], wanted[2], wanted[0]]
    assert found[0] != wanted[0]


def test_drawn_text_depends_on_neither_batch_nor_run(root: Path) -> None:
    wish = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 0.9}
    requests = [asked("generate_until", "the sea", wish)] * 4
    alone, together = (adapter(root, batch).generate_until(requests) for batch in (1, 4))
    assert alone == together
    assert len(set(alone)) > 1


def test_more_to_write_than_fits_is_told(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_gen_toks = 256 lies outside 1\.\.31, what a window of 32 tokens"):
        adapter(root).generate_until([asked("generate_until", "a", {"until": []})])


def test_local_tasks_by_command_equal_answers_by_hand(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["tiny_choices", "tiny_texts", "tiny_writing"]
    words = ["--load", str(root), "--tasks", *names, "--include-path", str(write_tasks(tmp_path))]
    assert (
        main(["evaluate", *words, "--text", str(tmp_path / "texts.jsonl"), "--json", str(tmp_path / "out.json")]) == 0
    )
    out = capsys.readouterr().out
    assert "|tiny_choices|" in out.replace(" ", "")
    engine, *records = json.loads((tmp_path / "out.json").read_text())
    metrics = {record["data"]: record["metrics"] for record in records}
    stage = load_model(root).stage
    hits, normed = 0, 0
    for question in QUESTIONS:
        ids = [choice.encode() for choice in question["choices"]]
        front = list(question["q"].encode()) or [EOD]
        values = [by_hand(stage, [*front, *choice], len(choice))[0] for choice in ids]
        scaled = [value / len(choice) for value, choice in zip(values, question["choices"], strict=True)]
        hits += values.index(max(values)) == question["answer"]
        normed += scaled.index(max(scaled)) == question["answer"]
    assert metrics["tiny_choices"]["acc,none"] == hits / 4
    assert metrics["tiny_choices"]["acc_norm,none"] == normed / 4
    nats = -sum(rolled(stage, text) for text in TEXTS)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert metrics["tiny_texts"]["bits_per_byte,none"] == pytest.approx(nats / num_bytes / math.log(2), rel=1e-6)
    # Our own protocol on the same file gives the same numbers.
    assert metrics["tiny_texts"]["word_perplexity,none"] == pytest.approx(engine["word_perplexity"], rel=1e-6)
    assert metrics["tiny_texts"]["byte_perplexity,none"] == pytest.approx(engine["byte_perplexity"], rel=1e-6)
    assert metrics["tiny_writing"]["exact_match,none"] == 0.0
    assert records[0]["settings"]["data"]["n_shot"] == 0
    assert records[0]["settings"]["layout"] == {"tensor": 1, "pipe": 1, "data": 1}


def test_an_unknown_task_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the harness's own thousands, which take it a while to read.
    ours = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda **given: ours(**given | {"include_defaults": False}))
    folder, told = str(write_tasks(tmp_path)), list[str]()
    with pytest.raises(ConfigError, match=r"--tasks = tiny_choice is not among 3 tasks; did you mean tiny_choices\?"):
        harness.load_tasks(["tiny_texts", "tiny_choice"], folder, told.append)
    with pytest.raises(ConfigError, match="--tasks = zzz is not among 3 tasks; give the folder of its YAML file as"):
        harness.load_tasks(["zzz"], folder, told.append)
    assert len(told) == 2
    assert "some thousands of files" in told[0]


def test_a_task_whose_data_is_not_there_is_told(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path)
    (folder / "texts.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"--tasks = tiny_texts cannot be loaded \(.*texts.jsonl.*\); mend its YAML"):
        harness.load_tasks(["tiny_texts"], str(folder), print)


def test_a_folder_of_tasks_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--include-path = .*gone is not a directory; give the one of the tasks'"):
        harness.load_tasks(["tiny_texts"], str(tmp_path / "gone"), print)
