"""Results of an evaluation as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_tlm.cli.files import STANDARD_OUTPUT, writing
from megatron_tlm.train.logs.records import finite

Record = dict[str, Any]

# Key of a record -> heading and format; columns that no record fills are left out.
COLUMNS: dict[str, tuple[str, str]] = {
    "data": ("data", "s"),
    "protocol": ("protocol", "s"),
    "examples": ("examples", ",d"),
    "tokens": ("tokens", ",d"),
    "loss": ("loss", ".4f"),
    "perplexity": ("perplexity", ".4f"),
    "bits_per_token": ("bits/token", ".4f"),
    "word_perplexity": ("word ppl", ".4f"),
    "byte_perplexity": ("byte ppl", ".4f"),
    "bits_per_byte": ("bits/byte", ".4f"),
    "accuracy": ("accuracy", ".4f"),
}


def heading(settings: Record) -> str:
    """A line on what was measured and how."""
    layout = " x ".join(f"{axis} {degree}" for axis, degree in settings["layout"].items())
    return (
        f"{settings['checkpoint']}, step {settings['step']}; windows of {settings['seq_length']} tokens, stride "
        f"{settings['stride']}; {settings['dtype']} on {settings['device']}, {layout}"
    )


def table(records: Sequence[Record]) -> str:
    """A row for each set."""
    keys = [key for key in COLUMNS if any(key in record for record in records)]
    rows = [[COLUMNS[key][0] for key in keys]]
    rows += [[_cell(record.get(key), COLUMNS[key][1]) for key in keys] for record in records]
    widths = [max(len(row[column]) for row in rows) for column in range(len(keys))]
    aligned = (
        "  ".join(cell.ljust(width) if key in ("data", "protocol") else cell.rjust(width) for key, cell, width in line)
        for line in (zip(keys, row, widths, strict=True) for row in rows)
    )
    return "\n".join(line.rstrip() for line in aligned)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def write_json(records: Sequence[Record], path: Path | None) -> None:
    """A list of all records into a file, or a line for each on stdout; what is not finite becomes null.

    ConfigError where the file cannot be written.
    """
    told = [finite(record) for record in records]
    if path is None:
        for record in told:
            print(json.dumps(record, default=str), flush=True)
        return
    with writing("--json", path):
        path.write_text(json.dumps(told, indent=2, default=str) + "\n", encoding="utf-8")


def tell_results(records: Sequence[Record], table_of_all: str, json_file: str | None) -> None:
    """As --json has it: the table and, with a file, all records in it; or a line of JSON for each record alone."""
    if json_file == STANDARD_OUTPUT:
        write_json(records, None)
        return
    print(table_of_all, flush=True)
    if json_file is not None:
        write_json(records, Path(json_file))
