"""`evaluate`: perplexity of a saved model on a corpus, every token but the first predicted once."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_tlm.cli.main import main
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.evaluation.restore import load_model


def by_hand(checkpoint: Path, tokens: np.ndarray, length: int) -> float:
    """Mean cross-entropy with torch's own function, window by window."""
    stage = load_model(checkpoint).stage
    losses = []
    for start in range(0, len(tokens) - 1, length):
        window = torch.tensor(tokens[start : start + length + 1].astype(np.int64))[None]
        with torch.no_grad():
            logits = stage(window[:, :-1])[..., :257]
        losses.append(torch.nn.functional.cross_entropy(logits[0].double(), window[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def measure(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, float]]:
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


def test_several_corpora_are_measured_one_by_one(
    checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--load", str(checkpoint), "--data-path", str(corpus), str(corpus)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{corpus}: perplexity ")
    assert lines[0].endswith("tokens at step 10")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--data-path 0.5 a", "--data-path = 0.5 is a weight and corpora are measured one by one; give prefixes"),
        ("--data-path nowhere", "nowhere.idx does not exist"),
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


def test_windows_longer_than_the_model_are_refused(
    checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--load", str(checkpoint), "--data-path", str(corpus), "--seq-length", "33"]) == 2
    assert (
        "--seq-length = 33 exceeds the model's max_position_embeddings = 32; give a shorter" in capsys.readouterr().err
    )
