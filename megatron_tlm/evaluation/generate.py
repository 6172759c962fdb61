"""Text from a model, one token at a time: the prompt in one pass, then each token with a key/value cache.

    logits / temperature -> the top_k best -> the fewest that hold top_p of the probability -> draw

Shapes: B batch, S sequence, V vocabulary without padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from megatron_tlm.errors import ConfigError
from megatron_tlm.evaluation.model import Model, whole_model
from megatron_tlm.model.stage import Stage

LEAST_TEMPERATURE = 1e-6  # logits over less leave float32
LAST_SEED = 2**64 - 1  # of torch's generators


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; temperature 0 is greedy, top_k 0 and top_p 1 cut nothing off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1234

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(f"temperature = {self.temperature:g} is below 0; give 0 (greedy) or more")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ConfigError(
                f"temperature = {self.temperature:g} is below {LEAST_TEMPERATURE:g} and not 0; give 0 for greedy"
            )
        if not 0 <= self.seed <= LAST_SEED:
            raise ConfigError(f"seed = {self.seed} lies outside 0..{LAST_SEED}; give a smaller one")
        if self.top_k < 0:
            raise ConfigError(f"top_k = {self.top_k} is below 0; give 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p:g} lies outside (0, 1]; give a probability, 1 for all tokens")


GREEDY = Sampling(temperature=0.0)


def kept_probabilities(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """The distribution [V] that is drawn from, in float32; greedy puts all on the first of the best tokens."""
    if sampling.temperature == 0:
        return torch.zeros_like(logits_V, dtype=torch.float32).index_fill_(0, logits_V.argmax(), 1.0)
    scores_V = logits_V.float() / sampling.temperature
    if 0 < sampling.top_k < scores_V.numel():
        best_k = scores_V.topk(sampling.top_k)
        scores_V = torch.full_like(scores_V, -torch.inf).index_copy_(0, best_k.indices, best_k.values)
    probabilities_V = scores_V.softmax(dim=-1)
    if sampling.top_p < 1:
        sorted_V, order_V = probabilities_V.sort(descending=True, stable=True)
        # A token stays while the better ones hold less than top_p: the best one always does.
        cut_V = sorted_V.cumsum(dim=-1) - sorted_V >= sampling.top_p
        cut_V[0] = False  # what the cut is compared with may be too small for float32
        sorted_V[cut_V] = 0.0
        probabilities_V = torch.zeros_like(probabilities_V).index_copy_(0, order_V, sorted_V)
    return probabilities_V / probabilities_V.sum()


def generate(
    stage: Stage,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    eod_id: int | None,
    sampling: Sampling = GREEDY,
    num_ids: int | None = None,
) -> Iterator[int]:
    """New token ids as they come, up to `max_new_tokens`; ends before an end-of-document token.

    The stage is the whole model on one process (tensor 1, pipe 1). Only ids below `num_ids` are drawn: a model may know
    more than its tokenizer (by default all of the vocabulary).
    ConfigError for an empty prompt or ids outside the vocabulary; PlanError for a stage that is not a whole model.
    """
    model = whole_model(stage)
    vocab_size = stage.plan.shape.vocab_size
    if not prompt:
        raise ConfigError("prompt = 0 tokens is below 1; give some text or the end-of-document token")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ConfigError(
            f"prompt = ids {min(prompt)}..{max(prompt)} leave the vocabulary of {vocab_size}; "
            "use the tokenizer the model was trained with"
        )
    steps = decode(model, [prompt], [sampling], max_new_tokens=max_new_tokens, num_ids=num_ids)
    return takewhile(lambda token: token != eod_id, (token for (token,) in steps))


def decode(
    model: Model,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    max_new_tokens: int,
    num_ids: int | None = None,
) -> Iterator[list[int]]:
    """The next id of each of several prompts of one length, up to `max_new_tokens` times; nothing ends it earlier.

    Every row is drawn with a generator of its own. Collective over tensor and pipe, and the same on all their ranks.
    """
    stage, was_training = model.stage, model.stage.training
    # Draws happen on the CPU, so that a seed gives the same text on every device.
    generators = [torch.Generator().manual_seed(sampling.seed) for sampling in samplings]
    tokens_BS, position = torch.tensor([list(prompt) for prompt in prompts]), 0
    cache = stage.new_cache(batch=len(prompts), capacity=tokens_BS.shape[1] + max_new_tokens)
    for _ in range(max_new_tokens):
        stage.eval()
        with torch.inference_mode():
            logits_BV = model.last_logits(tokens_BS, cache, position)[:, :num_ids]
            rows = zip(logits_BV, samplings, generators, strict=True)
            drawn = [
                int(torch.multinomial(kept_probabilities(logits_V, sampling), 1, generator=generator))
                for logits_V, sampling, generator in rows
            ]
        stage.train(was_training)
        yield drawn
        tokens_BS, position = torch.tensor(drawn).unsqueeze(1), position + tokens_BS.shape[1]
