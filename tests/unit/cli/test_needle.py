"""`needle`: cells, tables and a heat map of a checkpoint; what does not fit is told before anything is asked."""

import json
from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.cli.needle import main as needle
from megatron_tlm.cli.needle import tables
from megatron_tlm.cli.needle_plot import write_needle_plot
from megatron_tlm.errors import ConfigError, DataError


@pytest.fixture
def haystack(tmp_path: Path) -> str:
    file = tmp_path / "hay.jsonl"
    file.write_text("".join(json.dumps({"text": f"The {n} winds blow over the hills."}) + "\n" for n in range(40)))
    return str(file)


CELLS = [
    {"kind": kind, "length": length, "depth": depth, "samples": 2, "model": "m", "score": depth / 100}
    for kind in ("uuid", "number")
    for length in (256, 512)
    for depth in (0.0, 50.0, 100.0)
]


def test_tables_and_maps(tmp_path: Path) -> None:
    assert tables(CELLS).splitlines()[2:5] == [
        "uuid              depth 0   depth 50  depth 100",
        "    256 tokens        0.0       50.0      100.0",
        "    512 tokens        0.0       50.0      100.0",
    ]
    write_needle_plot(CELLS, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_a_checkpoint_is_asked(
    long_checkpoint: Path, haystack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--load", str(long_checkpoint), "--haystack", haystack, "--kinds", "pass-key", "--samples", "2"]
    assert main(["needle", *words, "--depths", "0", "100", "--plot", str(tmp_path / "m.svg"), "--json"]) == 0
    cells = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(192, 0.0), (192, 100.0)]
    # Ten steps teach nobody to look anything up.
    assert all(cell["score"] == 0 for cell in cells)
    assert (tmp_path / "m.svg").exists()
    assert main(["needle", *words, "--depths", "0", "--json", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out == tables(cells[:1]) + "\n"
    assert json.loads((tmp_path / "found.json").read_text()) == cells[:1]


def test_mistakes_are_told(checkpoint: Path, haystack: str) -> None:
    words = ["--load", str(checkpoint), "--haystack", haystack]
    with pytest.raises(ConfigError, match=r"--lengths = 64 exceeds the model's max_position_embeddings = 32"):
        needle([*words, "--lengths", "64"])
    with pytest.raises(DataError, match="length = 32 tokens leaves 0 for a haystack"):
        needle(words)
    with pytest.raises(ConfigError, match="--depths = 101 lies outside"):
        needle([*words, "--depths", "101"])
    with pytest.raises(ConfigError, match="--lengths = 0 is below 1; give 1 or more"):
        needle([*words, "--lengths", "0"])
    with pytest.raises(ConfigError, match=r"--plot = nowhere/map.png cannot be written: there is no folder nowhere"):
        needle([*words, "--plot", "nowhere/map.png"])
    with pytest.raises(ConfigError, match=r"--json = nowhere/found.json cannot be written: there is no folder nowhere"):
        needle([*words, "--json", "nowhere/found.json"])
