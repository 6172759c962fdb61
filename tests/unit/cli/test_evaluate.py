"""`evaluate`: perplexity of a saved model on a corpus, every token but the first predicted once."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_tlm import __version__
from megatron_tlm.cli.main import main
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.evaluation.restore import load_model
from tests.unit.cli.conftest import damage, save_tiny, tiny_config


def by_hand(checkpoint: Path, tokens: np.ndarray, length: int, stride: int | None = None) -> float:
    """Mean cross-entropy with torch's own function, window by window; the last one looks back as far as it may."""
    stage = load_model(checkpoint).stage
    losses, stop = [], 1
    while stop < len(tokens):
        scored = min(length if stop == 1 else stride or length, len(tokens) - stop)
        stop += scored
        window = torch.tensor(tokens[max(0, stop - length - 1) : stop].astype(np.int64))[None]
        with torch.no_grad():
            logits = stage(window[:, :-1])[0, -scored:, :257]
        losses.append(torch.nn.functional.cross_entropy(logits.double(), window[0, -scored:], reduction="none"))
    return float(torch.cat(losses).mean())


def measure(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["evaluate", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("batch", ["1", "3", "500"])
def test_every_token_but_the_first_is_predicted_once(
    batch: str, checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = IndexedDataset(corpus).tokens
    words = ["--load", str(checkpoint), "--data-path", str(corpus), "--micro-batch-size", batch]
    (record,) = measure(words, capsys)
    assert record["tokens"] == len(tokens) - 1
    assert record["loss"] == pytest.approx(by_hand(checkpoint, tokens, 32), rel=1e-6)
    assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
    assert record["step"] == 10


def test_a_split_is_the_validation_share(checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indexed = IndexedDataset(corpus)
    words = ["--load", str(checkpoint), "--data-path", str(corpus), "--split", "50,30,20", "--seq-length", "16"]
    (record,) = measure(words, capsys)
    tokens = np.concatenate([indexed[i] for i in range(30, 48)])
    assert record["loss"] == pytest.approx(by_hand(checkpoint, tokens, 16), rel=1e-6)


def test_batches_can_be_limited(checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--load", str(checkpoint), "--data-path", str(corpus), "--micro-batch-size", "2", "--eval-iters", "3"]
    assert measure(words, capsys)[0]["tokens"] == 3 * 2 * 32


def test_a_stride_gives_every_token_more_to_look_at(
    checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = IndexedDataset(corpus).tokens
    (record,) = measure(["--load", str(checkpoint), "--data-path", str(corpus), "--stride", "8"], capsys)
    assert record["tokens"] == len(tokens) - 1
    assert record["loss"] == pytest.approx(by_hand(checkpoint, tokens, 32, 8), rel=1e-6)
    assert record["settings"]["stride"] == 8


def test_several_corpora_are_measured_one_by_one(
    checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--load", str(checkpoint), "--data-path", str(corpus), str(corpus)]) == 0
    head, _, columns, first, second = capsys.readouterr().out.splitlines()
    assert head == (
        f"{checkpoint / 'step-00000010'}, step 10; windows of 32 tokens, stride 32; float32 on cpu, "
        "tensor 1 x pipe 1 x data 1"
    )
    assert columns.split() == ["data", "protocol", "tokens", "loss", "perplexity", "bits/token"]
    assert first == second
    assert first.split()[:2] == [str(corpus), "stream"]


def test_a_file_keeps_the_numbers_and_all_they_depend_on(
    checkpoint: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--load", str(checkpoint), "--data-path", str(corpus), "--dtype", "float64"]
    windows = math.ceil((IndexedDataset(corpus).num_tokens - 1) / 32)
    assert main(["evaluate", *words, "--json", str(tmp_path / "results.json")]) == 0
    assert "float64 on cpu" in capsys.readouterr().out
    (record,) = json.loads((tmp_path / "results.json").read_text())
    manifest = checkpoint / "step-00000010" / "manifest.json"
    assert record["settings"] == {
        "checkpoint": str(checkpoint / "step-00000010"),
        "step": 10,
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "seq_length": 32,
        "stride": 32,
        "micro_batch_size": 8,
        "dtype": "float64",
        "device": "cpu",
        "layout": {"tensor": 1, "pipe": 1, "data": 1},
        "tokenizer": {"type": "ByteTokenizer", "sha256": None},
        "version": __version__,
        "data": {
            "prefix": str(corpus),
            "digest": IndexedDataset(corpus).digest,
            "sequences": [0, 60],
            "windows": windows,
        },
    }


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "other": "x y"}) + "\n" for text in ("wide  below", "narrow é")))
    return path


def test_texts_are_measured_by_token_word_and_byte(
    texts: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = measure(["--load", str(checkpoint), "--text", str(texts)], capsys)
    streams = [np.array([256, *text.encode()]) for text in ("wide  below", "narrow é")]
    nats = sum(by_hand(checkpoint, stream, 32) * (len(stream) - 1) for stream in streams)
    assert (record["protocol"], record["tokens"], record["words"], record["bytes"]) == ("documents", 20, 4, 20)
    assert record["loss"] == pytest.approx(nats / 20, rel=1e-6)
    assert record["word_perplexity"] == pytest.approx(math.exp(nats / 4), rel=1e-5)
    assert record["byte_perplexity"] == pytest.approx(math.exp(nats / 20), rel=1e-5)
    assert record["bits_per_byte"] == pytest.approx(nats / 20 / math.log(2), rel=1e-6)
    assert record["settings"]["data"] == {
        "files": [{"path": str(texts), "sha256": hashlib.sha256(texts.read_bytes()).hexdigest()}],
        "json_key": "text",
        "documents": 2,
    }
    (other,) = measure(["--load", str(checkpoint), "--text", str(texts), "--json-key", "other", "--limit", "1"], capsys)
    assert (other["tokens"], other["words"]) == (3, 2)


def test_wikitext_is_read_detokenised_and_counted_as_it_was(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wiki.txt").write_text(" = A =\n one , two\n = B =\n 1 @,@ 0\n")
    words = ["--load", str(checkpoint), "--text", str(tmp_path / "wiki.txt"), "--protocol", "wikitext"]
    (record,) = measure(words, capsys)
    assert (record["tokens"], record["bytes"]) == (len(" = A =\none, two") + len(" = B =\n1,0\n"), 33)
    assert record["words"] == (1 + 3 + 3) + (1 + 3 + 3 + 1)
    assert record["settings"]["data"]["documents"] == 2


def test_lambada_is_the_last_word_and_whether_it_is_guessed(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = load_model(checkpoint).stage
    texts, nats, guessed = [f"b c {word}" for word in ("x", "yz", "q")], [], []
    for text in texts:
        ids = torch.tensor([[*text.encode()]])
        with torch.no_grad():
            logits = stage(ids[:, :-1])[0, 2:, :257].double()  # from the space on
        nats.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 3:], reduction="sum")))
        guessed.append(bool((logits.argmax(dim=-1) == ids[0, 3:]).all()))
    (tmp_path / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["--load", str(checkpoint), "--text", str(tmp_path / "lambada.jsonl"), "--protocol", "lambada"]
    (record,) = measure(words, capsys)
    assert (record["examples"], record["tokens"], record["accuracy"]) == (3, 7, sum(guessed) / 3)
    assert record["loss"] == pytest.approx(sum(nats) / 3, rel=1e-6)
    assert record["perplexity"] == pytest.approx(math.exp(sum(nats) / 3), rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--data-path 0.5 a", "--data-path = 0.5 is a weight and corpora are measured one by one; give prefixes"),
        ("--data-path nowhere", "nowhere.idx does not exist"),
        ("--stride 33", "--stride = 33 lies outside 1..32, the tokens of a window (--seq-length); give one inside"),
        ("--protocol lambada", "--protocol = lambada does nothing without --text; give that too, or leave it out"),
        ("--limit 3", "--limit = 3 does nothing without --text or --tasks"),
        ("--text -", "--text = - is standard input, which has no hash to keep; give a file"),
        ("--json .", "--json = . cannot be written: it is a folder; give a file in a folder that is there"),
        ("--json nowhere/out.json", "--json = nowhere/out.json cannot be written: there is no folder nowhere"),
        ("--text nowhere.jsonl", "'nowhere.jsonl' matches no file of text"),
        ("--tensor-model-parallel-size 2", "world size = 1 is not a multiple of tensor x pipeline = 2 x 1 = 2"),
        ("--eval-iters 0", "--eval-iters = 0 is below 1; give 1 or more"),
        ("--micro-batch-size x", "--micro-batch-size = 'x' is not an integer"),
        ("--split 1,0,0", "--split = 1,0,0 leaves 0 of the 60 documents of"),
        ("--ckpt-step 11", "ckpt_step = 11 is not in"),
        ("--load nowhere", "nowhere is not a directory"),
        ("--eval-iter 1", "--eval-iter is not a flag of `megatron-tlm evaluate`; did you mean --eval-iters?"),
    ],
)
def test_a_mistake_is_told(
    flags: str, message: str, checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--load", str(checkpoint), "--data-path", str(corpus), *flags.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--text", "--tasks"])
def test_text_needs_a_tokenizer(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path, tiny_config())
    assert main(["evaluate", "--load", str(tmp_path), flag, "some.jsonl"]) == 2
    assert (
        f"{flag} = some.jsonl cannot be read by {tmp_path / 'step-00000010'}, which was trained without a tokenizer; "
        "give --data-path"
    ) in capsys.readouterr().err


def test_nothing_to_measure_is_told(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--load", str(checkpoint)]) == 2
    assert "--data-path, --text, --tasks = none given where 1 says what to measure" in capsys.readouterr().err


def test_windows_longer_than_the_model_are_refused(
    checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--load", str(checkpoint), "--data-path", str(corpus), "--seq-length", "33"]) == 2
    assert (
        "--seq-length = 33 exceeds the model's max_position_embeddings = 32; give 32 or less" in capsys.readouterr().err
    )


def test_hashes_are_checked_unless_not_wanted(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path, tiny_config(tokenizer_type="ByteTokenizer"))
    damage(tmp_path)
    words = ["--load", str(tmp_path), "--data-path", str(corpus)]
    assert main(["evaluate", *words]) == 2
    assert "the file was damaged since" in capsys.readouterr().err
    assert len(measure([*words, "--no-check-hashes"], capsys)) == 1
