"""Every architecture saved on tensor ranks, converted, restored on one process, evaluated and asked for text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_tlm.checkpoint.relayout import convert
from megatron_tlm.evaluation.generate import generate
from megatron_tlm.evaluation.perplexity import evaluate_perplexity
from megatron_tlm.evaluation.restore import load_model
from tests.equivalence.launching import assert_equal_bits, losses_of, metrics_of, run_config, tensors_of
from tests.equivalence.test_train_mixers import ARCHITECTURES, TENSOR
from tests.equivalence.test_train_resume import ZERO, finish
from tests.equivalence.training import VOCAB, batches


@pytest.mark.parametrize("name", ["gated-headwise-normed", "hope", "lmm", "mag"])
def test_a_run_is_restored_anywhere(name: str, tmp_path: Path) -> None:
    whole = run_config(tmp_path / "whole", **ARCHITECTURES[name], **{TENSOR: 2}, exit_interval=6, eval_interval=6)
    finish(whole, 2)
    assert whole.checkpoint.save is not None
    other = convert(Path(whole.checkpoint.save), tmp_path / "other", tensor=1, pipe=2).parent
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
    score = evaluate_perplexity(restored.stage, [next(batches(whole)).astype(np.int64)])
    assert 0 < score.loss < 10

    moved = run_config(tmp_path / "moved", load=str(other), **ARCHITECTURES[name], **{ZERO: 2})
    same = run_config(tmp_path / "same", load=whole.checkpoint.save, **ARCHITECTURES[name], **{ZERO: 2})
    for config in (moved, same):
        finish(config, 1)
    assert losses_of(moved) == losses_of(same)
    assert metrics_of(moved)[0]["step"] == 7
    assert_equal_bits(tensors_of(moved), tensors_of(same))
