import pytest
import torch

from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.evaluation.generate import GREEDY, Sampling, generate, kept_probabilities
from megatron_tlm.model.stage import Stage
from tests.tiny_model import VOCABULARY, random_weights, set_weights, tiny_plan

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def stage() -> Stage:
    plan = tiny_plan()
    stage = Stage(plan, dtype=torch.float64)
    set_weights(stage.global_parameters(), random_weights(plan), plan, 0)
    return stage


def uncached_greedy(stage: Stage, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(stage(torch.tensor([tokens]))[0, -1, :VOCABULARY].argmax()))
    return tokens[len(prompt) :]


def test_cached_generation_equals_uncached(stage: Stage) -> None:
    stage.train()
    tokens = list(generate(stage, PROMPT, max_new_tokens=30, eod_id=None))
    assert tokens == uncached_greedy(stage, PROMPT, 30)
    assert stage.training
    assert len(set(tokens)) > 3


def test_it_stops_before_the_end_of_document(stage: Stage) -> None:
    tokens = uncached_greedy(stage, PROMPT, 30)
    end = tokens[7]
    assert list(generate(stage, PROMPT, max_new_tokens=30, eod_id=end)) == tokens[: tokens.index(end)]
    assert list(generate(stage, PROMPT, max_new_tokens=0, eod_id=None)) == []


def test_a_seed_decides_the_text(stage: Stage) -> None:
    def text(seed: int, **cut: float) -> list[int]:
        sampling = Sampling(temperature=5.0, seed=seed, **cut)  # type: ignore[arg-type]
        return list(generate(stage, PROMPT, max_new_tokens=20, eod_id=None, sampling=sampling))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(1, top_k=1) == uncached_greedy(stage, PROMPT, 20)
    assert text(2, top_p=1e-9) == uncached_greedy(stage, PROMPT, 20)
    assert text(2, top_p=1e-300) == uncached_greedy(stage, PROMPT, 20)


def test_only_ids_that_the_tokenizer_knows_are_drawn(stage: Stage) -> None:
    sampling = Sampling(temperature=50.0)
    drawn = list(generate(stage, PROMPT, max_new_tokens=60, eod_id=None, sampling=sampling, num_ids=7))
    assert set(drawn) == set(range(7))
    assert max(generate(stage, PROMPT, max_new_tokens=60, eod_id=None, sampling=sampling)) > 7


def test_cuts_keep_the_best_tokens() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    as_list = lambda **cut: [round(p, 4) for p in kept_probabilities(logits, Sampling(**cut)).tolist()]  # noqa: E731
    assert as_list() == [0.1, 0.4, 0.2, 0.3]
    assert as_list(top_k=2) == [0.0, 0.5714, 0.0, 0.4286]
    assert as_list(top_k=99) == [0.1, 0.4, 0.2, 0.3]
    assert as_list(top_p=0.5) == [0.0, 0.5714, 0.0, 0.4286]
    assert as_list(top_p=0.39) == [0.0, 1.0, 0.0, 0.0]
    assert as_list(top_k=3, top_p=0.7) == [0.0, 0.5714, 0.0, 0.4286]
    assert as_list(temperature=0.0) == [0.0, 1.0, 0.0, 0.0]
    assert as_list(temperature=0.5) == [0.0333, 0.5333, 0.1333, 0.3]


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        ({"temperature": -1}, "temperature = -1"),
        ({"top_k": -2}, "top_k = -2"),
        ({"top_p": 0}, "top_p = 0 lies outside"),
    ],
)
def test_impossible_sampling_is_refused(cut: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Sampling(**cut)  # type: ignore[arg-type]


def test_impossible_prompts_are_refused_at_once(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="prompt = 0 tokens is below 1"):
        generate(stage, [], max_new_tokens=1, eod_id=None)
    with pytest.raises(ConfigError, match=r"prompt = ids 0\.\.53 leave the vocabulary of 53"):
        generate(stage, [0, 53], max_new_tokens=1, eod_id=None)


def test_half_a_model_is_refused() -> None:
    half = Stage(tiny_plan(pipe=2), 0)
    with pytest.raises(PlanError, match="of 6 units on 1 tensor ranks is not a whole model"):
        generate(half, PROMPT, max_new_tokens=1, eod_id=None, sampling=GREEDY)
