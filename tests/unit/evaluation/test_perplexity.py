import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.perplexity import Perplexity, evaluate_perplexity
from megatron_tlm.model.stage import Stage
from tests.tiny_model import VOCABULARY, random_tokens, random_weights, set_weights, tiny_plan


def filled_stage() -> Stage:
    plan = tiny_plan()
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    return stage


def test_every_predicted_token_counts_the_same() -> None:
    stage = filled_stage()
    windows = [random_tokens(2, 9, seed=1), random_tokens(1, 4, seed=2), random_tokens(3, 9, seed=3)]
    losses = torch.cat(
        [
            F.cross_entropy(stage(w[:, :-1])[..., :VOCABULARY].flatten(0, 1), w[:, 1:].flatten(), reduction="none")
            for w in windows
        ]
    )
    result = evaluate_perplexity(stage, [window.numpy() for window in windows])
    assert result.num_tokens == 16 + 3 + 24
    assert math.isclose(result.loss, losses.mean().item(), rel_tol=1e-12)
    assert math.isclose(result.perplexity, losses.mean().exp().item(), rel_tol=1e-12)
    assert stage.training


def test_zero_weights_give_the_vocabularys_size() -> None:
    plan = tiny_plan()
    stage = Stage(plan)
    set_weights(stage.global_parameters(), {n: w * 0 for n, w in random_weights(plan).items()}, plan, 0)
    result = evaluate_perplexity(stage, [np.zeros((1, 9), dtype=np.int64)])
    assert math.isclose(result.perplexity, VOCABULARY, rel_tol=1e-6)


def test_no_data_is_refused() -> None:
    with pytest.raises(DataError, match="evaluation windows = 0 tokens"):
        evaluate_perplexity(filled_stage(), [])


def test_a_hopeless_loss_is_infinite_and_not_an_error() -> None:
    assert Perplexity(1e6, 1).perplexity == math.inf
    assert Perplexity(math.log(2), 1).bits_per_token == 1.0
