"""Every architecture saved on tensor ranks, converted, restored on one process, evaluated and asked for text."""

from pathlib import Path

import pytest
import torch

from megatron_tlm.checkpoint.load import find
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.relayout import convert
from megatron_tlm.cli.target_stages import target_stages
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.evaluation.perplexity import total
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.evaluation.score import Scorer
from megatron_tlm.plan.grid import Grid
from tests.equivalence.launching import assert_equal_bits, losses_of, metrics_of, run_config, tensors_of
from tests.equivalence.test_train_mixers import ARCHITECTURES, TENSOR
from tests.equivalence.test_train_resume import ZERO, finish
from tests.equivalence.training import VOCAB
from tests.equivalence.windows import training_passages


@pytest.mark.parametrize("name", ["gated-headwise-normed", "hope", "lmm", "mag"])
def test_a_run_is_restored_anywhere(name: str, tmp_path: Path) -> None:
    whole = run_config(tmp_path / "whole", **ARCHITECTURES[name], **{TENSOR: 2}, exit_interval=6, eval_interval=6)
    finish(whole, 2)
    assert whole.checkpoint.save is not None
    saved = Path(whole.checkpoint.save)
    facts = read_manifest(find(saved)).facts
    stages, _ = target_stages(facts, facts.shape, Grid(pipe=2), None)
    other = convert(saved, tmp_path / "other", tensor=1, pipe=2, stages=stages).parent
    ends = [load_model(path) for path in (whole.checkpoint.save, other)]
    for ours, theirs in zip(*(end.stage.state_dict().values() for end in ends), strict=True):
        assert torch.equal(ours, theirs)
    restored = ends[0]
    assert restored.plan.shape == restored.stage.plan.shape
    text = list(generate(restored.stage, [3, 1, 4], max_new_tokens=12, eod_id=None))
    tokens = [3, 1, 4]
    for _ in range(12):
        with torch.no_grad():
            tokens.append(int(restored.stage(torch.tensor([tokens]))[0, -1, :VOCAB].argmax()))
    assert text == tokens[3:]
    moved = run_config(tmp_path / "moved", load=str(other), **ARCHITECTURES[name], **{ZERO: 2})
    same = run_config(tmp_path / "same", load=whole.checkpoint.save, **ARCHITECTURES[name], **{ZERO: 2})
    for config in (moved, same):
        finish(config, 1)
    assert losses_of(moved) == losses_of(same)
    assert metrics_of(moved)[0]["step"] == 7
    # What evaluation finds on the samples of step 7 is the loss that the step began with.
    found = total(Scorer(restored.model, batch=3)(training_passages(moved, 7)))
    assert found.loss == pytest.approx(losses_of(moved)[0], rel=1e-6)
    assert_equal_bits(tensors_of(moved), tensors_of(same))
