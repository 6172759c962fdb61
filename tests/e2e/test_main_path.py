"""The README's path on a little real text: text, tokens, plan, training on four ranks, resume, evaluation, conversion,
generation. Each fixture is a chapter, and stands on the one before.
"""

import gzip
import json
import re
from itertools import islice
from pathlib import Path

import pytest
import yaml

from tests.e2e.commands import ROOT, Outcome, megatron_tlm, torchrun

CORPUS = ROOT / "examples" / "data" / "public_domain.jsonl.gz"
STEPS, STOP = 8, 4
VOCABULARY = 512

CONFIG = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 32}
    | {"ffn_hidden_size": 64},
    "parallel": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "training": {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": STEPS}
    | {"eval_interval": STOP, "eval_iters": 2, "exit_interval": STOP},
    "optimizer": {"lr": 1e-2, "lr_warmup_iters": 2},
    "data": {"train_data_path": ["train_text_document"], "valid_data_path": ["heldout_text_document"]}
    | {"tokenizer_model": "tokenizer.model"},
    "checkpoint": {"save": "checkpoints"},
    "logging": {"log_dir": "logs", "log_interval": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, two indexed corpora and a configuration."""
    folder = tmp_path_factory.mktemp("main-path")
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        documents = list(islice(lines, 220))
    (folder / "train.jsonl").write_text("".join(documents[20:]), encoding="utf-8")
    (folder / "heldout.jsonl").write_text("".join(documents[:20]), encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    tokenizer = ("--model-prefix", "tokenizer", "--vocab-size", VOCABULARY)
    megatron_tlm("tokenizer", "train", "--input", "train.jsonl", *tokenizer, cwd=folder).succeeded()
    for part in ("train", "heldout"):
        output = ("--output-prefix", part, "--append-eod", "--workers", 2, "--tokenizer-model", "tokenizer.model")
        megatron_tlm("preprocess", "--input", f"{part}.jsonl", *output, cwd=folder).succeeded()
    return folder


@pytest.fixture(scope="module")
def interrupted(folder: Path) -> Outcome:
    """The first half of the run, as tensor 2 x pipeline 2."""
    return torchrun(4, "train", "--config", "run.yaml", cwd=folder).succeeded()


@pytest.fixture(scope="module")
def resumed(interrupted: Outcome, folder: Path) -> Outcome:
    """The second half, in the same layout."""
    return torchrun(4, "train", "--config", "run.yaml", "--load", "checkpoints", cwd=folder).succeeded()


@pytest.fixture(scope="module")
def converted(resumed: Outcome, folder: Path) -> Outcome:
    target = ("--target-tensor-parallel-size", 1, "--target-pipeline-parallel-size", 1)
    return megatron_tlm(
        "convert", "--load-dir", "checkpoints", "--save-dir", "converted", *target, cwd=folder
    ).succeeded()


def test_the_plan_is_printed_as_json(folder: Path) -> None:
    plan = json.loads(megatron_tlm("plan", "--config", "run.yaml", "--json", cwd=folder).succeeded().out)
    assert plan["widths"] == [96, 80, 48, 32]
    assert plan["stages"][0]["first_unit"] == "embedding"
    assert plan["stages"][-1]["last_unit"] == "head"
    assert sum(stage["parameters"] for stage in plan["stages"]) == plan["parameters"]
    assert plan["imbalance"] == pytest.approx(plan["slowest"] / plan["mean"])


def test_a_run_stops_at_its_interval_and_says_how_to_go_on(interrupted: Outcome) -> None:
    assert f"exit interval {STOP} after step {STOP} of {STEPS}" in interrupted.out
    assert "--load checkpoints continues" in interrupted.out


def test_a_resumed_run_logs_every_step_once(resumed: Outcome, folder: Path) -> None:
    assert f"at step {STOP}" in resumed.out
    records = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["step"] for record in records if "valid_loss" in record] == [STOP, STEPS]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert all(record["grad_norm"] > 0 and record["tokens_per_second"] > 0 for record in steps)


def test_a_run_leaves_its_configuration_plot_and_board(resumed: Outcome, folder: Path) -> None:
    logs = folder / "logs"
    assert yaml.safe_load((logs / "config.yaml").read_text())["model"]["num_layers"] == 4
    assert (logs / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((logs / "tensorboard").glob("events.*"))


def test_the_start_is_quiet(interrupted: Outcome) -> None:
    """DeepSpeed's and torch's start-up noise stays away; what a person reads is ours."""
    assert "[WARNING]" not in interrupted.out
    ours = ("note: MLP widths taper by default", "starting 4 ranks on ")
    others = [line for line in interrupted.err.splitlines() if not line.startswith(ours)]
    assert not [line for line in others if "torch/distributed/run.py" not in line]


def test_a_converted_checkpoint_is_the_same_model(converted: Outcome, folder: Path) -> None:
    assert "tensor 1 x pipeline 1" in converted.out
    measured = []
    for load in ("checkpoints", "converted"):
        data = ("--data-path", "heldout_text_document", "--json")
        measured.append(json.loads(megatron_tlm("evaluate", "--load", load, *data, cwd=folder).succeeded().out))
    checkpoints = {record.pop("settings")["checkpoint"] for record in measured}
    assert checkpoints == {f"{load}/step-{STEPS:08d}" for load in ("checkpoints", "converted")}
    assert measured[0] == measured[1]
    assert measured[0]["step"] == STEPS
    assert 1 < measured[0]["perplexity"] < VOCABULARY


def test_greedy_text_follows_the_prompt(converted: Outcome, folder: Path) -> None:
    prompt = "And the LORD said"
    words = ("--load", "converted", "--prompt", prompt, "--greedy", "--max-new-tokens", 8)
    text = megatron_tlm("generate", *words, cwd=folder).succeeded().out
    assert text.startswith(prompt)
    assert len(text) > len(prompt) + 1


def test_a_checkpoint_goes_on_in_another_layout(resumed: Outcome, folder: Path) -> None:
    """Two data ranks take over from tensor 2 x pipeline 2, with the optimizer's state."""
    layout = ("--tensor-model-parallel-size", 1, "--pipeline-model-parallel-size", 1, "--train-iters", STEPS + 1)
    elsewhere = ("--load", "checkpoints", "--save", "elsewhere", "--log-dir", "elsewhere-logs")
    outcome = torchrun(2, "train", "--config", "run.yaml", *layout, *elsewhere, cwd=folder).succeeded()
    assert re.search(rf"continued from checkpoints/step-0*{STEPS} at step {STEPS}", outcome.out)
    assert (folder / "elsewhere" / "latest").read_text().strip() == f"step-{STEPS + 1:08d}"
