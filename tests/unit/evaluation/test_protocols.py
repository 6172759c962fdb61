"""Each protocol from text to numbers, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import DataError
from megatron_tlm.evaluation.protocols import (
    Document,
    Windows,
    document_passages,
    encode_pair,
    last_word_passages,
    last_words,
    stream_passages,
)
from megatron_tlm.evaluation.score import Score

TOKENIZER = ByteTokenizer()
EOD = TOKENIZER.eod_id


class Words:
    """A tokenizer that puts the space in front of a word, as most do; 0 ends a document."""

    type_name = "Words"
    vocab_size = 100
    eod_id = 0

    def __init__(self) -> None:
        self.pieces: list[str] = [""]

    def encode(self, text: str) -> list[int]:
        words = text.split(" ")
        pieces = [word if number == 0 else " " + word for number, word in enumerate(words)]
        return [self._id(piece) for piece in pieces if piece]

    def _id(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)


def test_a_stream_is_some_sequences_of_a_pair_end_to_end(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "pair", np.dtype(np.uint16)) as writer:
        for ids in ([1, 2, 3], [4], [5, 6, 7, 8], [9]):
            writer.add_document(ids)
    passages = stream_passages(IndexedDataset(tmp_path / "pair"), range(1, 3), Windows(3, 3))
    assert [(p.ids.tolist(), p.scored) for p in passages] == [([4, 5, 6, 7], 3), ([5, 6, 7, 8], 1)]
    assert len(stream_passages(IndexedDataset(tmp_path / "pair"), range(4), Windows(2, 1), limit=3)) == 3
    assert stream_passages(IndexedDataset(tmp_path / "pair"), range(0), Windows(2, 1)) == []


def test_a_document_stands_alone_behind_the_end_token() -> None:
    documents = [Document("ab c", "ab c"), Document("é", "two words"), Document("", "")]
    found = document_passages(documents, TOKENIZER, Windows(8, 8))
    assert [p.ids.tolist() for p in found.passages] == [[EOD, *b"ab c"], [EOD, *"é".encode()]]
    assert [p.scored for p in found.passages] == [4, 2]
    # Words and bytes are those of the text to count in; an empty one is one word, as the harness has it.
    assert (found.num_words, found.num_bytes) == (5, 13)
    result = found.perplexity([Score(10.0, 4, False), Score(3.0, 2, False)])
    assert result.word_perplexity == pytest.approx(math.exp(13 / 5))
    assert result.byte_perplexity == pytest.approx(math.e)


def test_the_last_word_is_scored_with_its_space() -> None:
    (passage,) = last_word_passages(["she said good bye"], TOKENIZER, 30)
    assert bytes(passage.ids.tolist()) == b"she said good bye"
    assert passage.scored == len(" bye")
    (cut,) = last_word_passages(["she said good bye"], TOKENIZER, 6)
    assert bytes(cut.ids.tolist()) == b"ood bye"
    (alone,) = last_word_passages([" bye"], TOKENIZER, 6)
    assert alone.ids.tolist() == [EOD, *b" bye"]


@pytest.mark.parametrize("text", ["word", "word ", ""])
def test_a_text_without_a_last_word_is_told(text: str) -> None:
    with pytest.raises(DataError, match=f"document 2 = {text!r} does not end in a space and a word"):
        last_word_passages(["a b", text], TOKENIZER, 8)


def test_last_words_are_summed_up_by_example() -> None:
    result = last_words([Score(2.0, 1, True), Score(4.0, 3, False), Score(0.0, 1, True), Score(2.0, 2, False)])
    assert (result.num_examples, result.num_tokens, result.accuracy) == (4, 7, 0.5)
    assert result.perplexity == pytest.approx(math.exp(2.0))
    assert result.accuracy_error == pytest.approx(math.sqrt(0.25 / 3))
    assert math.isnan(last_words([Score(2.0, 1, True)]).accuracy_error)
    with pytest.raises(DataError, match="documents = 0 is below 1; give a file of texts"):
        last_words([])


def test_a_space_at_the_contexts_end_belongs_to_the_next_word() -> None:
    tokenizer = Words()
    front, ids = encode_pair(tokenizer, "one two ", "three")  # type: ignore[arg-type]
    assert [tokenizer.pieces[id_] for id_ in front] == ["one", " two"]
    assert [tokenizer.pieces[id_] for id_ in ids] == [" three"]
    assert encode_pair(tokenizer, "", "one") == ([], tokenizer.encode("one"))  # type: ignore[arg-type]
