"""A run that is converted goes on as if it had always had the other layout, and comes back bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.checkpoint.load import find
from megatron_tlm.cli.main import main
from tests.equivalence.launching import assert_equal_bits, launch, losses_of, run_config, tensors_of

TENSOR, PIPE, ZERO = "tensor_model_parallel_size", "pipeline_model_parallel_size", "zero_stage"
UNTIED = {"untie_embeddings_and_output_weights": True}

# source ranks and layout, target ranks and layout, what both have
CASES: list[tuple[int, dict[str, int], int, dict[str, int], dict[str, Any]]] = [
    (2, {ZERO: 3}, 4, {TENSOR: 2, PIPE: 2, ZERO: 1}, {}),
    (4, {TENSOR: 2, PIPE: 2, ZERO: 1}, 2, {ZERO: 2}, UNTIED),
    (3, {PIPE: 3, ZERO: 1}, 8, {TENSOR: 4, PIPE: 2, ZERO: 1}, {"bf16": True}),
]


def convert(source: Path, target: Path, ranks: int, layout: dict[str, int]) -> None:
    tensor, pipe = layout.get(TENSOR, 1), layout.get(PIPE, 1)
    sizes = {"tensor-parallel": tensor, "pipeline-parallel": pipe, "data-parallel": ranks // (tensor * pipe)}
    flags = [word for name, size in sizes.items() for word in (f"--target-{name}-size", str(size))]
    command = ["convert", "--load-dir", str(source), "--save-dir", str(target), *flags]
    assert main([*command, "--target-zero-stage", str(layout[ZERO]), "--verify"]) == 0


@pytest.mark.parametrize("case", CASES, ids=["zero3-grid", "grid-zero2", "pipe3-tensor4"])
def test_a_converted_run_goes_on(case: tuple[int, dict[str, int], int, dict[str, int], Any], tmp_path: Path) -> None:
    ranks, layout, other_ranks, other_layout, changes = case
    first = run_config(tmp_path / "a", exit_interval=3, **layout, **changes)
    assert launch(first, ranks).codes == [0] * ranks
    on = run_config(tmp_path / "on", load=first.checkpoint.save, exit_interval=4, **layout, **changes)
    assert launch(on, ranks).codes == [0] * ranks

    convert(tmp_path / "a/ck", tmp_path / "b", other_ranks, other_layout)
    there = run_config(tmp_path / "there", load=str(tmp_path / "b"), exit_interval=4, **other_layout, **changes)
    ended = launch(there, other_ranks)
    assert ended.codes == [0] * other_ranks, ended.complained
    tolerance = 1e-5 if not changes.get("bf16") else 2e-2
    assert losses_of(there) == pytest.approx(losses_of(on), abs=tolerance)

    convert(tmp_path / "b", tmp_path / "c", ranks, layout)
    back = replace(first, checkpoint=replace(first.checkpoint, save=str(tmp_path / "c")))
    assert_equal_bits(tensors_of(back), tensors_of(first))
    assert find(tmp_path / "c").name == "step-00000003"


def test_a_padded_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first = run_config(tmp_path / "a", exit_interval=3, width_multiple=2, ffn_hidden_size=52)
    assert launch(first, 1).codes == [0]
    on = run_config(tmp_path / "on", load=first.checkpoint.save, exit_interval=5, width_multiple=2, ffn_hidden_size=52)
    assert launch(on, 1).codes == [0]
    flags = ["--target-tensor-parallel-size", "4", "--pad-widths"]
    assert main(["convert", "--load-dir", str(tmp_path / "a/ck"), "--save-dir", str(tmp_path / "b"), *flags]) == 0
    padded = run_config(tmp_path / "padded", load=str(tmp_path / "b"), exit_interval=5, tensor_model_parallel_size=4)
    padded = replace(padded, taper=replace(padded.taper, layer_widths=(80, 52, 28)))
    ended = launch(padded, 4)
    assert ended.codes == [0] * 4, ended.complained
    assert len(losses_of(padded)) == 2
    assert losses_of(padded) == pytest.approx(losses_of(on), abs=1e-5)
