"""Scores of passages against logits by hand, whatever the batch; ties and empty continuations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.evaluation.model import likeliest, whole_model
from megatron_tlm.evaluation.passages import Passage
from megatron_tlm.evaluation.score import Score, Scorer
from megatron_tlm.model.stage import Stage
from tests.tiny_model import VOCABULARY, random_tokens, random_weights, set_weights, tiny_plan


def filled_stage(**changes: object) -> Stage:
    plan = tiny_plan(**changes)  # type: ignore[arg-type]
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    return stage


def some_passages() -> list[Passage]:
    """Of all lengths, in no order; one whose tokens the model likes best, one with nothing to score."""
    lengths = [(9, 8), (4, 1), (2, 1), (9, 3), (6, 5), (3, 2), (5, 0)]
    return [Passage(random_tokens(1, n, seed=n + 10 * k)[0].numpy(), k) for n, k in lengths]


def by_hand(stage: Stage, passage: Passage) -> Score:
    ids = torch.from_numpy(passage.ids)
    logits = stage(ids[None, :-1])[0, :, :VOCABULARY].detach()
    losses = F.cross_entropy(logits, ids[1:], reduction="none")
    hits: Tensor = logits.argmax(dim=-1) == ids[1:]
    count = passage.scored
    return Score(float(losses[len(losses) - count :].sum()), count, bool(hits[len(hits) - count :].all()))


@pytest.mark.parametrize("batch", [1, 2, 50])
@pytest.mark.parametrize("mixer", ["attention", "titans_lmm"])
def test_a_score_is_what_logits_say_alone_or_in_a_batch(batch: int, mixer: str) -> None:
    stage = filled_stage(mixer=mixer, schedule="uniform")
    passages = some_passages()
    greedy = stage(random_tokens(1, 4))[0, -1, :VOCABULARY].argmax()
    passages.append(Passage(np.array([*random_tokens(1, 4)[0].tolist(), int(greedy)]), 1))
    told = []
    found = Scorer(whole_model(stage), batch, lambda done, whole: told.append((done, whole)))(passages)
    for score, passage in zip(found, passages, strict=True):
        wanted = by_hand(stage, passage)
        assert score.nats == pytest.approx(wanted.nats, rel=1e-10, abs=1e-12)
        assert score[1:] == wanted[1:]
    assert found[-1].greedy
    assert told[-1] == (-(-7 // batch), -(-7 // batch))
    assert stage.training


def test_nothing_to_score_is_worth_nothing_and_asks_no_model() -> None:
    assert Scorer(whole_model(filled_stage()))([Passage(np.array([3]), 0)]) == [Score(0.0, 0, True)]


def test_of_equal_logits_the_first_id_is_the_likeliest_and_padding_never() -> None:
    logits = torch.tensor([[[0.0, 2.0, 2.0, 9.0], [1.0, 1.0, 1.0, 9.0]]])
    assert likeliest(logits, AxisGroup.single(), 3).tolist() == [[1, 0]]
