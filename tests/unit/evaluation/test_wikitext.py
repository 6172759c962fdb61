"""WikiText's pages, detokeniser and words, against the harness's own where it is installed."""

import re
from pathlib import Path

import pytest

from megatron_tlm.evaluation.wikitext import count_words, detokenize, pages

RAW = """ = Robert Boulter =

 Robert Boulter is an English film , television and theatre actor . He had a guest @-@ starring role in 1 @,@ 000
 plays ( the " Herons " ; and others ) : he was 2 @.@ 5 m tall , at 30 \N{DEGREE SIGN} C . N of the boys ' toys
 is the actor 's own ! He

 = = Career = =

 = = = 2000 – 2005 = = =

 In 2000 ? Yes .
 = Second page =
 text
"""


def test_a_page_begins_at_its_title() -> None:
    first, second = pages(RAW)
    assert first.startswith(" = Robert Boulter =\n")
    assert first.endswith("Yes .")
    assert second == " = Second page =\n text\n"
    assert list(pages("\n before \n = A =\nb")) == ["\n before ", " = A =\nb"]
    assert list(pages(" \n\n")) == []


def test_detokenised_text_reads_like_text() -> None:
    text = detokenize(RAW)
    assert "film, television and theatre actor. He had a guest-starring role in 1,000" in text
    assert '(the "Herons"; and others): he was 2.5 m' in text
    assert "== Career ==" in text
    assert "\n=== 2000 – 2005 ===" in text
    assert "the actor's own! He" in text


def test_it_is_the_harnesss_detokeniser_and_word_count() -> None:
    tasks = pytest.importorskip("lm_eval.tasks", reason="lm-evaluation-harness is not installed")
    source = Path(str(tasks.__file__)).parent / "wikitext" / "preprocess_wikitext.py"
    theirs: dict[str, object] = {}
    exec(source.read_text(), theirs)
    for text in (RAW, *pages(RAW), "s ' / ' 5 [ a ] { b } ' c '", ""):
        assert detokenize(text) == theirs["wikitext_detokenizer"]({"page": text})  # type: ignore[operator]
        counted = theirs["process_results"]({"page": text}, (0.0,))  # type: ignore[operator]
        assert counted["word_perplexity"] == (0.0, count_words(text))


def test_words_are_counted_between_white_space() -> None:
    assert count_words("a  b\nc") == 3
    assert count_words(" a ") == len(re.split(r"\s+", " a ")) == 3
