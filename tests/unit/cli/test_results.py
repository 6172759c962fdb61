"""Results as a table and as JSON."""

import json
import math
from pathlib import Path

import pytest

from megatron_tlm.cli.results import table, write_json
from megatron_tlm.errors import ConfigError

RECORDS = [
    {"data": "books", "protocol": "stream", "tokens": 12345, "loss": 1.0, "perplexity": math.inf},
    {"data": "l", "protocol": "lambada", "tokens": 3, "loss": 2.0, "perplexity": 7.389, "accuracy": 0.5},
]


def test_columns_that_nobody_fills_are_left_out() -> None:
    assert table(RECORDS).splitlines() == [
        "data   protocol  tokens    loss  perplexity  accuracy",
        "books  stream    12,345  1.0000         inf         -",
        "l      lambada        3  2.0000      7.3890    0.5000",
    ]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--json = .*no/out.json cannot be written \(No such .*\); give another file"
    ):
        write_json(RECORDS, tmp_path / "no" / "out.json")


def test_json_has_no_infinity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested = [*RECORDS, {"metrics": {"x": math.nan, "y": [1.0, -math.inf], "z": Path("a")}}]
    write_json(nested, tmp_path / "out.json")
    first, second, third = json.loads((tmp_path / "out.json").read_text())
    assert first["perplexity"] is None
    assert second == RECORDS[1]
    assert third == {"metrics": {"x": None, "y": [1.0, None], "z": "a"}}
    write_json(nested, None)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [first, second, third]
