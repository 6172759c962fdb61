"""The model file read by hand says what the library says."""

from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from megatron_tlm.errors import ExportError
from megatron_tlm.export.sentencepiece_model import BPE, UNIGRAM, UNKNOWN, read_sentencepiece
from tests.unit.export.texts import TEXTS, train_like


@pytest.mark.parametrize("kind", ["ours", "llama", "unigram"])
def test_pieces_scores_and_ids_are_the_library_s(kind: str, tmp_path: Path) -> None:
    path = train_like(kind, tmp_path)
    library, found = SentencePieceProcessor(model_file=str(path)), read_sentencepiece(path)
    assert [piece.text for piece in found.pieces] == [library.id_to_piece(index) for index in range(len(library))]
    assert [piece.score for piece in found.pieces] == [library.get_score(index) for index in range(len(library))]
    assert [piece.kind == UNKNOWN for piece in found.pieces] == [
        library.is_unknown(index) for index in range(len(library))
    ]
    ids = (library.unk_id(), library.bos_id(), library.eos_id(), library.pad_id())
    assert (found.unk_id, found.bos_id, found.eos_id, found.pad_id) == tuple(None if id_ < 0 else id_ for id_ in ids)
    assert found.model_type == (UNIGRAM if kind == "unigram" else BPE)
    assert found.byte_fallback == any(library.is_byte(index) for index in range(len(library)))
    assert found.add_dummy_prefix == (kind != "ours")
    assert found.remove_extra_whitespaces == (kind == "unigram")
    assert bool(found.charsmap) == (kind == "unigram")


@pytest.mark.parametrize("content", [b"", b"{}", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b\x00", b"\xff" * 12])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(ExportError, match=r"x\.model"):
        read_sentencepiece(tmp_path / "x.model")


def test_a_kind_that_only_the_library_runs_is_refused(tmp_path: Path) -> None:
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "chars"),
        model_type="char",
        vocab_size=30,
        minloglevel=2,
    )
    with pytest.raises(ExportError, match="model_type = 4 is neither 1"):
        read_sentencepiece(tmp_path / "chars.model")
