"""What a tokenizer does to a text is told."""

from pathlib import Path

from megatron_tlm.data.round_trip import PROBES, count_trips, first_difference, pieces, take_trip
from megatron_tlm.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer, NullTokenizer, SentencePieceTokenizer


def test_our_own_models_and_bytes_give_every_text_back(sentencepiece_tokenizer: SentencePieceTokenizer) -> None:
    for tokenizer in (sentencepiece_tokenizer, ByteTokenizer()):
        for name, text in PROBES.items():
            trip = take_trip(tokenizer, text)
            assert trip.is_lossless, name
            assert not trip.holds_end, name


def test_an_end_spelt_out_is_noticed(huggingface_file: Path) -> None:
    trip = take_trip(HuggingFaceTokenizer(huggingface_file), PROBES["an end-of-text piece"])
    assert trip.holds_end
    assert not trip.is_lossless


def test_what_is_lost_is_shown() -> None:
    trip = take_trip(NullTokenizer(9), "1 2  3")
    assert first_difference(trip) == "at character 4: '1 2  3' became '1 2 3'"
    count = count_trips(NullTokenizer(9), ["1 2", "1 2  3", "9"])
    assert (count.texts, count.lossless, count.with_end, count.tokens, count.first_lossy) == (3, 2, 1, 6, trip)


def test_bytes_of_one_character_stand_together() -> None:
    tokenizer = ByteTokenizer()
    assert pieces(tokenizer, tokenizer.encode("aé€ ")) == ["'a'", "'é' of 2 ids", "'€' of 3 ids", "' '"]
    # What never becomes a character is shown byte by byte, and what follows is not lost in it.
    assert pieces(tokenizer, [*tokenizer.encode("€")[:2], *tokenizer.encode("a")]) == ["'\ufffd'", "'\ufffd'", "'a'"]
