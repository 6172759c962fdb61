"""Prompts continued as text: where it ends, and that nobody pays for tokens that nobody wants."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.evaluation import complete as module
from megatron_tlm.evaluation.complete import Prompt, complete, cut
from megatron_tlm.evaluation.model import whole_model
from tests.unit.evaluation.test_score import filled_stage

TOKENIZER = ByteTokenizer()


class Scripted:
    """Stands for `decode`: writes what a script has for each prompt, and counts its steps."""

    def __init__(self, script: dict[str, str]) -> None:
        self.script, self.steps, self.batches = script, 0, list[int]()

    def __call__(
        self, model: Any, prompts: Sequence[Sequence[int]], samplings: Any, *, max_new_tokens: int, num_ids: int
    ) -> Iterator[list[int]]:
        self.batches.append(len(prompts))
        assert num_ids == TOKENIZER.vocab_size
        texts = [self.script[TOKENIZER.decode(prompt)].encode() for prompt in prompts]
        for place in range(max_new_tokens):
            self.steps += 1
            yield [text[place] if place < len(text) else TOKENIZER.eod_id for text in texts]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted({"ab": "one. two", "cd": "é", "xyz": "no end in sight", "ef": "x.y"})
    monkeypatch.setattr(module, "decode", scripted)
    return scripted


def ask(*prompts: Prompt, batch: int = 8) -> list[str]:
    return complete(whole_model(filled_stage()), TOKENIZER, prompts, batch)


def prompt(text: str, count: int = 12, stops: tuple[str, ...] = ()) -> Prompt:
    return Prompt(TOKENIZER.encode(text), count, stops)


def test_text_ends_at_a_stop_string_an_end_of_document_or_its_length(scripted: Scripted) -> None:
    prompts = (prompt("ab", stops=(".",)), prompt("xyz"), prompt("cd", stops=(".",)), prompt("xyz", 5))
    assert ask(*prompts) == ["one", "no end in si", "é", "no en"]


def test_a_batch_ends_with_its_last_row(scripted: Scripted) -> None:
    assert ask(prompt("ab", stops=(".",)), prompt("cd")) == ["one", "é"]
    assert (scripted.steps, scripted.batches) == (len("one."), [2])


def test_prompts_of_one_length_share_a_batch_of_bounded_size(scripted: Scripted) -> None:
    prompts = [prompt("ab"), prompt("xyz"), prompt("cd"), prompt("ef"), prompt("xyz", 5)]
    assert ask(*prompts, batch=2) == ["one. two", "no end in si", "é", "x.y", "no en"]
    assert sorted(scripted.batches) == [1, 1, 1, 2]


def test_the_first_stop_string_in_the_text_counts() -> None:
    assert cut("a b c", ("c", "b")) == "a "
    assert cut("a b c", ("x",)) == "a b c"
    assert cut("", ("x",)) == ""
