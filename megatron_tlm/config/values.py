"""One value against its declared type: strict for YAML, which has types, lenient for flags, which are all text."""

from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.errors import ConfigError

_NONE = ("none", "null")


@dataclass(frozen=True)
class Setting:
    """A value, and where the user wrote it (`--num-layers`, `run.yaml:3: model.num_layers`)."""

    value: Any
    address: str


# (section, field) -> setting; what one source, be it preset, file or command line, says.
Layer = dict[tuple[str, str], Setting]


def is_optional(declared: Any) -> bool:
    return NoneType in get_args(declared)


def base_type(declared: Any) -> Any:
    """The declared type without its `| None`."""
    rest = tuple(kind for kind in get_args(declared) if kind is not NoneType)
    return rest[0] if is_optional(declared) else declared


def is_list(declared: Any) -> bool:
    return get_origin(base_type(declared)) is tuple


def item_type(declared: Any) -> Any:
    """What a list holds."""
    return get_args(base_type(declared))[0]


def choices(declared: Any) -> tuple[str, ...]:
    """The names that a Literal allows; empty for every other type."""
    base = base_type(declared)
    return get_args(base) if get_origin(base) is Literal else ()


def from_yaml(value: Any, declared: Any, address: str) -> Any:
    """The value as declared; YAML's types are believed, so that a quoted number is an error.

    YAML 1.1 reads 3e-4 as text (it wants 3.0e-4): where a float is declared such text is a number.
    """
    given = value
    if base_type(declared) is float and isinstance(value, str):
        value = _float_or_text(value)
    if is_list(declared):
        value = _words(value) if item_type(declared) is str else _items(value)
    return _validate(value, declared, address, given, strict=True)


def from_flag(value: Any, declared: Any, address: str) -> Any:
    """The value as declared, from text; `none` takes back what a file or preset gave."""
    if is_optional(declared) and isinstance(value, str) and value.lower() in _NONE:
        return None
    given = value
    return _validate(tuple(value) if is_list(declared) else value, declared, address, given, strict=False)


@cache
def _adapter(declared: Any) -> TypeAdapter[Any]:
    return TypeAdapter(declared, config=ConfigDict(allow_inf_nan=False))


def _validate(value: Any, declared: Any, address: str, given: Any, *, strict: bool) -> Any:
    try:
        found = _adapter(declared).validate_python(value, strict=strict)
    except ValidationError:
        raise ConfigError(f"{address} = {given!r} {_complaint(given, declared)}") from None
    texts = [item for item in (found if isinstance(found, tuple) else (found,)) if isinstance(item, str)]
    if "" in texts:
        # `--save "$FOLDER"` without the variable: the folder meant is not the one that the shell stands in.
        raise ConfigError(f"{address} = {given!r} has an empty text; give one with letters, or leave it out")
    if not all(map(is_text, texts)):
        raise ConfigError(f"{address} = {given!a} holds half a surrogate pair, which is no text; mend it")
    return found


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold it: bytes of a command line that are none come as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complaint(given: Any, declared: Any) -> str:
    base = base_type(declared)
    if names := choices(declared):
        return f"is not one of {', '.join(names)}; {did_you_mean(str(given), names)}"
    if base is bool:
        return "is not a switch; write true or false"
    if base is int:
        return f"is not an integer; write {_integer_like(given)}"
    if base is float:
        return "is not a finite number; write one such as 0.1 or 3e-4"
    if base is str:
        return "is not text; put it in quotes"
    if is_list(declared) and item_type(declared) is int:
        return "is not a list of integers; write them in [ , ] or separated by spaces, such as 1 2 32"
    return "is not a list of texts; write them in [ , ] or separated by spaces"


def _integer_like(given: Any) -> str:
    """The integer that was probably meant: '4' and 1e5 are seen daily."""
    number = _float_or_text(str(given))
    return f"{int(number)} without quotes, point or exponent" if isinstance(number, float) else "one such as 4"


def _float_or_text(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if abs(number) < float("inf") else text


def _items(value: Any) -> Any:
    """A list as it stands, or one number that stands for a list of one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _words(value: Any) -> Any:
    """`0.7 a 0.3 b` and [0.7, a, 0.3, b] are the same list; a path with a blank in it needs the second form."""
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list):
        numbers = (int, float)
        return tuple(str(v) if isinstance(v, numbers) and not isinstance(v, bool) else v for v in value)
    return value
