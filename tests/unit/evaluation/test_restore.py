"""A model restored on one process: the saved weights, whatever stages saved them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_tlm.errors import CheckpointError
from megatron_tlm.evaluation.restore import load_model
from tests.unit.cli.conftest import save_tiny, tiny_config


def test_the_saved_weights_are_the_models(tmp_path: Path) -> None:
    weights = save_tiny(tmp_path, tiny_config(tokenizer_type="ByteTokenizer"))
    restored = load_model(tmp_path)
    parameters = restored.stage.global_parameters()
    assert set(parameters) == set(weights)
    for name, weight in weights.items():
        rows = weight.shape[0]
        assert torch.equal(parameters[name][:rows], weight)
        assert not parameters[name][rows:].any()
    assert restored.plan.padded_vocab_size == 384
    assert (restored.step, restored.stage.training, restored.plan.grid.size) == (10, False, 1)
    assert restored.tokenizer is not None
    assert restored.tokenizer.encode("a") == [97]


def test_a_dtype_can_be_asked_for(tmp_path: Path) -> None:
    save_tiny(tmp_path, tiny_config())
    restored = load_model(tmp_path, 10, torch.float64, torch.device("cpu"))
    assert {parameter.dtype for parameter in restored.stage.parameters()} == {torch.float64}
    assert restored.tokenizer is None


def test_a_configuration_that_is_not_understood_is_told(tmp_path: Path) -> None:
    save_tiny(tmp_path, tiny_config())
    path = tmp_path / "step-00000010" / "manifest.json"
    path.write_text(path.read_text().replace(json.dumps("seq_length"), json.dumps("seq_len")))
    with pytest.raises(CheckpointError, match=r"the configuration it was saved with is not understood \(manifest.json"):
        load_model(tmp_path)


def test_a_tokenizer_of_more_ids_than_the_model_reads_no_text(tmp_path: Path) -> None:
    """Ids that the model does not know would be looked up as rows of zeros, and measured in silence."""
    save_tiny(tmp_path, tiny_config(tokenizer_type="ByteTokenizer"))
    restored = load_model(tmp_path)
    assert restored.tokenizer_for("--text = a", "give --data-path") is restored.tokenizer
    smaller = replace(restored.plan, shape=replace(restored.plan.shape, vocab_size=256))
    with pytest.raises(CheckpointError, match=r"the tokenizer has 257 ids but the model knows 256; put the one there"):
        replace(restored, plan=smaller).tokenizer_for("--text = a", "give --data-path")
