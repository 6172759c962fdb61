"""What a report consists of, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells are text; all columns but the first hold numbers unless named in `left`."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Line:
    """A curve of a chart."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: bool = False
    color: int | None = None


@dataclass(frozen=True)
class Chart:
    """Curves over one axis; `file` is its name where pictures are files."""

    file: str
    title: str
    unit: str
    x_name: str
    lines: tuple[Line, ...]
    log_x: bool = False


@dataclass(frozen=True)
class Row:
    """An estimate with its interval, and the values that it was made of."""

    name: str
    mean: float
    half_width: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Intervals:
    """Differences around zero, one below the other."""

    file: str
    title: str
    unit: str
    rows: tuple[Row, ...]


Part = Words | Table | Chart | Intervals


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: tuple[Part, ...]
