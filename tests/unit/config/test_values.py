"""One value against its declared type: strict from YAML, lenient from flags."""

from typing import Any, Literal

import pytest

from megatron_tlm.config.values import base_type, choices, from_flag, from_yaml, is_list, is_optional
from megatron_tlm.errors import ConfigError

Style = Literal["cosine", "WSD"]
Words = tuple[str, ...]


def test_declared_types_are_taken_apart() -> None:
    assert is_optional(int | None)
    assert not is_optional(int)
    assert base_type(Style | None) == Style
    assert choices(Style | None) == ("cosine", "WSD")
    assert choices(int) == ()
    assert is_list(Words)
    assert not is_list(str | None)


@pytest.mark.parametrize(
    ("value", "declared", "meant"),
    [
        (4, int, 4),
        (4, float, 4.0),
        ("3e-4", float | None, 3e-4),
        (None, int | None, None),
        ("WSD", Style, "WSD"),
        (["a", 1], Words, ("a", "1")),
        ("a b", Words, ("a", "b")),
        ([], Words, ()),
    ],
)
def test_yaml_is_believed(value: Any, declared: Any, meant: Any) -> None:
    found = from_yaml(value, declared, "here")
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ("4", int),
        (4.0, int),
        (True, int),
        (True, float),
        ("nan", float),
        (1, bool),
        (1, str),
        (None, str),
        ("wsd", Style),
        ([True], Words),
        (4, Words),
    ],
)
def test_yaml_of_another_type_is_refused(value: Any, declared: Any) -> None:
    with pytest.raises(ConfigError, match=r"^here = .* is not "):
        from_yaml(value, declared, "here")


@pytest.mark.parametrize(
    ("value", "declared", "meant"),
    [
        ("4", int, 4),
        ("3e-4", float, 3e-4),
        ("NONE", int | None, None),
        ("none", str, "none"),
        (True, bool, True),
        (["a", "b"], Words, ("a", "b")),
    ],
)
def test_flags_are_text(value: Any, declared: Any, meant: Any) -> None:
    found = from_flag(value, declared, "--flag")
    assert (found, type(found)) == (meant, type(meant))


def test_the_integer_that_was_meant_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'1e5' is not an integer; write 100000 without quotes, point or exponent"):
        from_yaml("1e5", int, "here")


@pytest.mark.parametrize(("value", "declared"), [("", str), ("", str | None), (("a", ""), Words)])
def test_an_empty_text_is_refused(value: Any, declared: Any) -> None:
    """What a shell makes of a variable that is not there; as a folder it would be the one that the shell stands in."""
    with pytest.raises(ConfigError, match=r"--save = .* has an empty text; give one with letters, or leave it out"):
        from_flag(value, declared, "--save")
    with pytest.raises(ConfigError, match="has an empty text"):
        from_yaml(list(value) if value else value, declared, "run.yaml:3: checkpoint.save")
    with pytest.raises(ConfigError, match=r"save = 'a\\ud800' holds half a surrogate pair, which is no text; mend it"):
        from_yaml("a\ud800", str, "run.yaml:3: checkpoint.save")
