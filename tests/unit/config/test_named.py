"""Sets of data by name."""

import pytest

from megatron_tlm.config.named import named_sets
from megatron_tlm.errors import ConfigError


def test_names_and_prefixes_in_the_order_given() -> None:
    found = named_sets(("wiki=data/wiki_text_document", "b.2=a=b"), "data.eval_data")
    assert list(found.items()) == [("wiki", "data/wiki_text_document"), ("b.2", "a=b")]
    assert named_sets((), "data.eval_data") == {}


@pytest.mark.parametrize("word", ["wiki", "=wiki", "wiki=", "a b=wiki", "a/b=wiki"])
def test_what_is_no_named_set_is_told(word: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"--eval-data = '{word}' is not NAME=PREFIX; give each set a name of letters"
    ):
        named_sets((word,), "--eval-data")


def test_a_name_given_twice_is_told() -> None:
    with pytest.raises(ConfigError, match="--eval-data = a is the name of x and of y; give each its own"):
        named_sets(("a=x", "a=y"), "--eval-data")
