"""Prompts continued as text until a stop string, an end of document, or enough tokens.

Prompts of one length make a batch, so none needs padding and each gets the tokens that it would get alone. Data ranks
share the batches out, and every rank knows all texts in the end.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from megatron_tlm.comm.groups import gather_object
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.evaluation.generate import GREEDY, Sampling, decode
from megatron_tlm.evaluation.model import Model


class Prompt(NamedTuple):
    """Ids to continue by `max_new_tokens` at most; what is written ends before the first of the stop strings."""

    ids: Sequence[int]
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    sampling: Sampling = GREEDY


def complete(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    batch: int = 8,
    tell: Callable[[int, int], None] = lambda done, whole: None,
) -> list[str]:
    """The text behind each prompt, in their order. Collective: every rank asks for the same."""
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        alike[len(prompt.ids), prompt.max_new_tokens].append(index)
    batches = [
        group[start : start + batch]
        for _, group in sorted(alike.items(), reverse=True)
        for start in range(0, len(group), batch)
    ]
    mesh = model.mesh
    mine, found = batches[mesh.data.rank :: mesh.data.size], list[tuple[int, str]]()
    for done, indices in enumerate(mine, start=1):
        found += zip(indices, _complete_batch(model, tokenizer, [prompts[index] for index in indices]), strict=True)
        tell(done, len(mine))
    speaks = model.is_last and mesh.tensor.rank == 0
    texts = dict(pair for pairs in gather_object(found if speaks else []) for pair in pairs)
    return [texts[index] for index in range(len(prompts))]


def _complete_batch(model: Model, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[str]:
    """Of prompts of one length, up to as many tokens; a row that has ended waits for the others."""
    before = [tokenizer.decode(prompt.ids) for prompt in prompts]
    ids: list[list[int]] = [[] for _ in prompts]
    texts, ended = ["" for _ in prompts], [False for _ in prompts]
    steps = decode(
        model,
        [prompt.ids for prompt in prompts],
        [prompt.sampling for prompt in prompts],
        max_new_tokens=prompts[0].max_new_tokens,
        num_ids=tokenizer.vocab_size,
    )
    for drawn in steps:
        for row, (token, prompt) in enumerate(zip(drawn, prompts, strict=True)):
            if ended[row]:
                continue
            if token == tokenizer.eod_id:
                ended[row] = True
                continue
            ids[row].append(token)
            # Behind the prompt: a first piece alone would lose the space in front of it.
            texts[row] = tokenizer.decode([*prompt.ids, *ids[row]])[len(before[row]) :]
            ended[row] = any(stop in texts[row] for stop in prompt.stops)
        if all(ended):
            break
    return [cut(text, prompt.stops) for text, prompt in zip(texts, prompts, strict=True)]


def cut(text: str, stops: Sequence[str]) -> str:
    """What comes before the first stop string."""
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
