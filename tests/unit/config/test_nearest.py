"""The name that was probably meant."""

import pytest

from megatron_tlm.config.nearest import did_you_mean, nearest

KNOWN = ("num_layers", "num_attention_heads", "hidden_size", "--tensor-model-parallel-size", "WSD")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_layer", "num_layers"),
        ("num-layers", "num_layers"),
        ("NUM_LAYERS", "num_layers"),
        ("--tensor-model", "--tensor-model-parallel-size"),  # an abbreviation is far away by edit distance
        ("wsd", "WSD"),
        ("hiden_size", "hidden_size"),
        ("zzz", None),
        ("", None),
    ],
)
def test_spelling_and_abbreviation_are_seen_through(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN) == meant


def test_where_nothing_is_near_everything_is_named() -> None:
    assert did_you_mean("zzz", ("a1", "b2")) == "there are a1, b2"
    assert did_you_mean("a", ("a1", "b2")) == "did you mean a1?"
