"""What sentences have in common."""

from megatron_tlm.errors import few


def test_of_many_names_the_first_few_are_told() -> None:
    assert few(["a", "b", "c"]) == "a, b, c"
    assert few(range(9), 8) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
