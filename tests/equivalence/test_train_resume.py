"""Ten steps = five, a save, a resume and five more: bit for bit in one layout, and the same run in any other."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.config.schema import Config
from tests.equivalence.launching import assert_equal_bits, launch, losses_of, metrics_of, run_config, tensors_of
from tests.equivalence.training import show
from tests.unit.checkpoint.made import flip

ZERO, TENSOR, PIPE = "zero_stage", "tensor_model_parallel_size", "pipeline_model_parallel_size"
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {ZERO: 0, **DROPOUT}),
    (2, {ZERO: 2, "bf16": True, **DROPOUT}),
    (2, {ZERO: 3, "bf16": True}),
    (2, {PIPE: 2, ZERO: 0}),
    (4, {TENSOR: 2, PIPE: 2, "bf16": True, "sequence_parallel": True, **DROPOUT}),
    (4, {PIPE: 2, "untie_embeddings_and_output_weights": True}),
]


def finish(config: Config, ranks: int) -> None:
    ended = launch(config, ranks)
    assert ended.codes == [0] * ranks, ended.complained + ended.said


def continued(config: Config, folder: Path, **changes: Any) -> Config:
    """The run that goes on from `config`'s checkpoint and saves and logs in `folder`."""
    wanted = run_config(folder, load=config.checkpoint.save, **changes)
    return replace(wanted, training=replace(wanted.training, exit_interval=None))


@pytest.mark.parametrize(("ranks", "changes"), LAYOUTS, ids=show)
def test_a_resumed_run_equals_one_that_never_stopped(ranks: int, changes: dict[str, Any], tmp_path: Path) -> None:
    whole = run_config(tmp_path / "whole", **changes)
    half = run_config(tmp_path / "half", exit_interval=5, **changes)
    finish(whole, ranks)
    finish(half, ranks)
    rest = continued(half, tmp_path / "half", **changes)
    finish(rest, ranks)
    assert metrics_of(rest) == metrics_of(whole)
    assert_equal_bits(tensors_of(rest), tensors_of(whole))


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, list[float]]:
    """A float32 run stopped after five of ten steps on tensor 2 x pipe 2, and the losses of all ten."""
    folder = tmp_path_factory.mktemp("five")
    layout = {TENSOR: 2, PIPE: 2}
    whole, half = run_config(folder / "whole", **layout), run_config(folder / "half", exit_interval=5, **layout)
    finish(whole, 4)
    finish(half, 4)
    return half, losses_of(whole)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (1, {ZERO: 0}),
        (2, {ZERO: 1}),
        (2, {ZERO: 2}),
        (2, {ZERO: 3}),
        (4, {TENSOR: 4, "sequence_parallel": True}),
        (3, {PIPE: 3}),
        (4, {PIPE: 2, ZERO: 0}),
    ],
    ids=show,
)
def test_another_layout_continues_the_same_run(
    five_steps: tuple[Config, list[float]], ranks: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    half, losses = five_steps
    rest = continued(half, tmp_path, **changes)
    finish(rest, ranks)
    torch.testing.assert_close(losses_of(rest), losses[5:], rtol=1e-6, atol=0)


def test_bf16_continues_from_float32_and_back(five_steps: tuple[Config, list[float]], tmp_path: Path) -> None:
    half, losses = five_steps
    low = continued(half, tmp_path / "low", bf16=True, exit_interval=None)
    finish(replace(low, training=replace(low.training, exit_interval=8)), 1)
    high = continued(low, tmp_path / "high")
    finish(high, 1)
    torch.testing.assert_close(losses_of(low) + losses_of(high), losses[5:], rtol=2e-3, atol=0)


def test_finetuning_takes_the_weights_and_starts_anew(five_steps: tuple[Config, list[float]], tmp_path: Path) -> None:
    half, losses = five_steps
    tuned = continued(half, tmp_path, finetune=True)
    finish(tuned, 1)
    records = metrics_of(tuned)
    assert records[0]["step"] == 1
    assert records[0]["lr"] == 0.0
    assert records[0]["loss"] < losses[0]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_fresh_moments_go_on_at_the_saved_step(
    five_steps: tuple[Config, list[float]], stage: int, tmp_path: Path
) -> None:
    half, losses = five_steps
    config = continued(half, tmp_path, no_load_optim=True, **{ZERO: stage})
    finish(config, 1)
    records = [record for record in metrics_of(config) if "loss" in record]
    assert records[0]["step"] == 6
    torch.testing.assert_close(records[0]["loss"], losses[5], rtol=1e-6, atol=0)
    assert config.checkpoint.save is not None
    with Reader(find(Path(config.checkpoint.save))) as reader:
        assert (reader.manifest.facts.step, reader.manifest.facts.optimizer_steps) == (10, 5)


def test_a_checkpoint_of_weights_alone_is_refused_where_moments_are_wanted(tmp_path: Path) -> None:
    first = run_config(tmp_path / "first", no_save_optim=True, exit_interval=5)
    finish(first, 1)
    ended = launch(continued(first, tmp_path / "then"), 1)
    assert ended.codes == [2]
    assert "lacks exp_avg/embedding.weight, saved was weight" in ended.complained


def test_a_checkpoint_damaged_since_is_passed_over_by_all_ranks(tmp_path: Path) -> None:
    """Of a part that only rank 1 looks into: both go back to the step before, and come to where they would have."""
    config = run_config(tmp_path / "a", save_interval=6)
    finish(config, 2)
    wanted = tensors_of(config)
    flip(tmp_path / "a" / "ck" / "step-00000010" / "part-00001.safetensors")
    ended = launch(replace(config, checkpoint=replace(config.checkpoint, load=config.checkpoint.save)), 2)
    assert ended.codes == [0, 0], ended.complained
    assert re.search(r"passed over step-00000010: .*part-00001.safetensors: sha256 = .* damaged since", ended.out[0])
    assert "step-00000006 at step 6" in ended.out[0]
    assert_equal_bits(tensors_of(config), wanted)
    assert not (tmp_path / "a" / "ck" / ".lock").exists()


def test_a_damaged_checkpoint_that_is_the_only_one_is_refused_once(tmp_path: Path) -> None:
    config = run_config(tmp_path / "a")
    finish(config, 2)
    flip(tmp_path / "a" / "ck" / "step-00000010" / "part-00001.safetensors")
    ended = launch(replace(config, checkpoint=replace(config.checkpoint, load=config.checkpoint.save)), 2)
    assert ended.codes == [2, 2]
    assert ended.complained.count("megatron-tlm: error: ") == 1
    assert "no complete checkpoint" in ended.complained
