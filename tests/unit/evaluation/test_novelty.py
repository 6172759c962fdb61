"""Windows of a stream, and the same numbers from a model as from its blocks one by one."""

import numpy as np
import pytest
import torch

from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.model import whole_model
from megatron_tlm.evaluation.novelty import joined, measure_novelty, windows
from megatron_tlm.model.stage import Stage
from tests.tiny_model import random_tokens, random_weights, set_weights, tiny_plan


def test_windows_are_whole_and_as_many_as_asked() -> None:
    stream = np.arange(100, dtype=np.uint16)
    batches = windows(stream, 8, 3, 40)
    assert [tuple(batch.shape) for batch in batches] == [(3, 8), (2, 8)]
    assert torch.equal(torch.cat(batches).flatten(), torch.arange(40))
    assert sum(batch.numel() for batch in windows(stream, 8, 3, 10**6)) == 96
    assert [tuple(batch.shape) for batch in windows(stream, 8, 3, 1)] == [(1, 8)]
    assert torch.equal(windows(stream[:5], 8, 3, 40)[0], torch.arange(5)[None])
    with pytest.raises(DataError, match="tokens to measure on = 0 is below 1"):
        windows(stream[:0], 8, 3, 40)


def test_documents_end_in_their_token() -> None:
    assert joined([[5, 6], [], [7]], 0, 100).tolist() == [5, 6, 0, 0, 7, 0]
    assert joined([[5, 6], [7]], 0, 4).tolist() == [5, 6, 0, 7]


def test_a_model_as_its_blocks_and_back_in_its_mode() -> None:
    plan = tiny_plan(num_layers=3)
    stage = Stage(plan, dtype=torch.float64).train()
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    batches = [random_tokens(), random_tokens(seed=5)]
    found = measure_novelty(whole_model(stage), batches)
    assert stage.training
    assert found.num_tokens == 32
    with torch.no_grad():
        h = stage.blocks[1](stage.blocks[0](torch.cat(batches)))
        z, first = h, stage.blocks[0](torch.cat(batches))
        out = stage.blocks[2](z)
    assert found.layers[0].rho_block == pytest.approx(float(torch.cosine_similarity(out - first, first, dim=-1).mean()))
    assert found.layers[0].rho_mlp == pytest.approx(float(torch.cosine_similarity(out - z, first, dim=-1).mean()))
