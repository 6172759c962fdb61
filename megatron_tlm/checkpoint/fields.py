"""JSON that somebody else may have written: every value is taken with its type and bounds, or refused by address."""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from megatron_tlm.errors import CheckpointError

_LARGEST = 1 << 62


@dataclass(frozen=True)
class Field:
    """One value and where it stands, "step-00000010/manifest.json: files.part-00000.safetensors.bytes"."""

    address: str
    value: Any

    def refuse(self, rule: str) -> NoReturn:
        shown = repr(self.value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        raise CheckpointError(f"{self.address} = {shown} {rule}; the file is damaged or foreign, use another step")

    def object(self) -> dict[str, "Field"]:
        """The members of an object of any keys."""
        if not isinstance(self.value, dict):
            self.refuse("is not an object")
        return {key: Field(self._join(key), value) for key, value in self.value.items()}

    def record(self, *names: str) -> dict[str, "Field"]:
        """The members of an object that has exactly these keys."""
        members = self.object()
        for name in names:
            if name not in members:
                Field(self._join(name), None).refuse("is missing")
        for name, member in members.items():
            if name not in names:
                member.refuse("is not a field this version knows")
        return members

    def items(self, count: int | None = None) -> list["Field"]:
        """The elements of an array, of `count` elements if given."""
        if not isinstance(self.value, list):
            self.refuse("is not an array")
        if count is not None and len(self.value) != count:
            self.refuse(f"has {len(self.value)} elements, not {count}")
        return [Field(f"{self.address}[{index}]", item) for index, item in enumerate(self.value)]

    def integer(self, least: int = 0, most: int = _LARGEST) -> int:
        if type(self.value) is not int:
            self.refuse("is not an integer")
        if not least <= self.value <= most:
            self.refuse(f"lies outside {least}..{most}")
        return self.value

    def integers(self, least: int = 0) -> tuple[int, ...]:
        """An array of integers, without a Field per number: a manifest holds hundreds of thousands."""
        if not isinstance(self.value, list) or any(type(item) is not int for item in self.value):
            self.refuse("is not an array of integers")
        if any(not least <= item <= _LARGEST for item in self.value):
            self.refuse(f"has a number outside {least}..{_LARGEST}")
        return tuple(self.value)

    def text(self, pattern: str = r".*") -> str:
        """A string that matches the whole pattern."""
        if not isinstance(self.value, str):
            self.refuse("is not a string")
        if not re.fullmatch(pattern, self.value):
            self.refuse(f"does not match {pattern}")
        return self.value

    def scalar(self) -> int | float | str | bool | None:
        if not isinstance(self.value, int | float | str | bool | None):
            self.refuse("is not a number, string or truth value")
        return self.value

    def _join(self, key: str) -> str:
        return f"{self.address}{'' if self.address.endswith(': ') else '.'}{key}"


def parse(text: bytes, address: str) -> Field:
    """JSON as a Field; CheckpointError for bad JSON, a key given twice, NaN or infinity."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} given twice")
        return members

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{address} is not valid JSON ({error}); use another step") from error
    return Field(f"{address}: ", value)
