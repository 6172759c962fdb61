"""Every launch mistake is told in one sentence, with the numbers and a way out, and fails on every rank.

What can be seen without another rank is seen before torch is imported: those commands run inside this process, once as
each rank. The others start real ranks.
"""

import json
import re
import time
from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from tests.e2e.commands import megatron_tlm, ranks

BASE = ("train", "--preset", "tiny", "--mock-data", "--train-iters", "2", "--seq-length", "16")

# flags, ranks, the sentence
MISTAKES = [
    (
        ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"),
        6,
        r"world size = 6 is not a multiple of tensor x pipeline = 2 x 2 = 4; start 4 or 8 ranks, or change "
        r"--tensor-model-parallel-size or --pipeline-model-parallel-size",
    ),
    (
        ("--tensor-model-parallel-size", "3", "--num-layers", "3", "--ffn-hidden-size", "384"),
        3,
        r"tensor_model_parallel_size = 3 does not divide num_attention_heads = 4, .*; use one of \[1, 2, 4\]",
    ),
    (
        ("--tensor-model-parallel-size", "4", "--ffn-hidden-size", "44", "--width-multiple", "2"),
        4,
        r"tensor_model_parallel_size = 4 does not divide layer 0 width 66, .*; use one of \[1, 2\], "
        r"or a width_multiple that 4 divides",
    ),
    (
        ("--micro-batch-size", "4", "--global-batch-size", "12"),
        2,
        r"training.global_batch_size = 12 is not a multiple of micro_batch_size x data degree = 4 x 2 = 8; "
        r"give 8 or 16, or another --micro-batch-size",
    ),
    (
        ("--zero-stage", "2", "--pipeline-model-parallel-size", "2"),
        2,
        r"parallel.zero_stage = 2 cannot be combined with pipeline_model_parallel_size = 2: DeepSpeed's pipeline has "
        r"ZeRO stages 0 and 1; give --zero-stage 1",
    ),
    (
        ("--pipeline-model-parallel-size", "12"),
        12,
        r"pipeline_model_parallel_size = 12 exceeds the 9 pieces that 10 units can be cut into; use at most 9 stages "
        r"or more layers",
    ),
    (
        ("--global-batchsize", "8"),
        2,
        r"--global-batchsize is not a flag of `megatron-tlm train`; did you mean --global-batch-size\?",
    ),
    (
        ("--tokenizer-type", "ByteTokenizer", "--vocab-size", "100"),
        2,
        r"model.vocab_size = 100 is below the 257 ids of the tokenizer; give --vocab-size 257",
    ),
]


@pytest.mark.parametrize(("flags", "count", "sentence"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES])
def test_a_mistake_is_told_once_and_fails_every_rank(
    flags: tuple[str, ...],
    count: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # A mistake that passed unseen would start the run, here, inside the tests.
    monkeypatch.setattr("megatron_tlm.train.train.train", lambda config: pytest.fail("the mistake was not seen"))
    for rank in range(count):
        left = tmp_path / "attempt_0" / str(rank) / "error.json"
        left.parent.mkdir(parents=True)
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "TORCHELASTIC_ERROR_FILE": left}
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        assert main([*BASE, *flags]) == 2
        said = capsys.readouterr().err
        assert re.fullmatch(rf"megatron-tlm: error: {sentence}.*\n" if rank == 0 else "", said)
        # torchrun collects what each rank leaves in a file of its own.
        assert re.search(sentence, json.loads(left.read_text())["message"]["message"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 40 bytes and a checkpoint of a model of two layers."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "text.jsonl").write_text(json.dumps({"text": "forty bytes are not much to learn from.."}) + "\n")
    words = ("--input", "text.jsonl", "--output-prefix", "text", "--tokenizer-type", "ByteTokenizer")
    megatron_tlm("preprocess", *words, cwd=folder).succeeded()
    small = ("--num-layers", 2, "--save", "two-layers")
    megatron_tlm(*BASE, *small, cwd=folder).succeeded()
    return folder


CORPUS = ("train", "--preset", "tiny", "--tokenizer-type", "ByteTokenizer", "--train-iters", "2", "--seq-length", "64")

LATER_MISTAKES = [
    (
        (*CORPUS, "--data-path", "absent_document"),
        r"absent_document.idx does not exist; give the prefix of a \.bin/\.idx pair",
    ),
    (
        (*CORPUS, "--train-data-path", "text_text_document", "--eval-iters", "0"),
        r"model.seq_length = 64 is too long: a sample takes 65 tokens and this split of \S+ holds 40 in 1 sequences; "
        r"give more text",
    ),
    (
        (*BASE, "--hidden-size", "64", "--num-attention-heads", "2", "--load", "two-layers"),
        r"two-layers/step-\d+ is a checkpoint of another model: num_layers = 2 \(not 4\), "
        r"hidden_size = 128 \(not 64\), num_attention_heads = 4 \(not 2\), .*; give the saved sizes or "
        r"load another checkpoint",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), LATER_MISTAKES, ids=["no data", "long sequence", "other model"])
def test_a_mistake_that_needs_the_ranks_fails_every_rank(words: tuple[str, ...], sentence: str, folder: Path) -> None:
    outcomes = ranks(2, *words, cwd=folder)
    assert [outcome.code for outcome in outcomes] == [2, 2]
    said = "".join(outcome.err for outcome in outcomes)
    assert len(re.findall(r"^megatron-tlm: error: ", said, flags=re.MULTILINE)) == 1
    assert re.search(rf"megatron-tlm: error: .*{sentence}", said)
    assert "Traceback" not in said


def test_a_mistake_of_one_node_alone_ends_the_other_too(tmp_path: Path) -> None:
    """The second node's run.yaml asks for what cannot be; the first one's rank waits for it at the rendezvous."""
    (tmp_path / "good.yaml").write_text("data: {mock_data: true}\n")
    (tmp_path / "bad.yaml").write_text("data: {mock_data: true}\ntraining: {seed: -1}\n")
    start = time.monotonic()
    nodes = {"GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    said = ranks(2, *BASE, cwd=tmp_path, each=lambda rank: ("--config", ("good.yaml", "bad.yaml")[rank]), **nodes)
    assert [outcome.code for outcome in said] == [2, 2], said
    assert re.search(r"rank 1 on \S+: .*training.seed = -1 is below 0; give 0 or more", said[0].err)
    assert time.monotonic() - start < 300  # half of what ranks wait for each other; ten seconds on an idle machine


def test_nodes_with_other_settings_are_told_which(tmp_path: Path) -> None:
    seeds = [("--seed", "1"), ("--seed", "2")]
    said = ranks(2, *BASE, cwd=tmp_path, each=lambda rank: seeds[rank], GROUP_WORLD_SIZE="2", LOCAL_RANK="0")
    assert [outcome.code for outcome in said] == [2, 2], said
    told = "".join(outcome.err for outcome in said)
    assert re.search(r"error: training.seed = 1 on .*, 2 on .*; give every node the same flags and the same", told)
    assert len(re.findall(r"^megatron-tlm: error: ", told, flags=re.MULTILINE)) == 1
