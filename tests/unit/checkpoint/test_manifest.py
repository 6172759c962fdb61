"""A manifest is read back as it was written; every kind of damage is refused by file and field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.checkpoint.load import Reader, check_complete, find
from megatron_tlm.checkpoint.manifest import Manifest, read_manifest
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import facts, model_shape, row_halves, save, values


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = values(model_shape())
    tokenizer = tmp_path / "made.model"
    tokenizer.write_bytes(b"a tokenizer")
    about = facts(model_shape(), grid=Grid(pipe=2, tensor=1))
    return save(tmp_path / "run", tensors, about, boxes=row_halves(tensors), tokenizer=tokenizer)


def test_all_facts_come_back(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    assert manifest.facts == facts(model_shape(), grid=Grid(pipe=2, tensor=1))
    assert manifest.tokenizer == "tokenizer.model"
    assert Manifest.from_bytes(manifest.to_bytes(), "again") == manifest


def test_it_is_plain_json_with_a_line_per_tensor(checkpoint: Path) -> None:
    text = (checkpoint / "manifest.json").read_text()
    assert json.loads(text)["tensors"]["exp_avg/layers.0.mlp.up.weight"] == {
        "dtype": "F32",
        "shape": [24, 8],
        "pieces": [["part-00000.safetensors", [0, 0], [12, 8]], ["part-00001.safetensors", [12, 0], [12, 8]]],
    }
    assert sum('"dtype"' in line for line in text.splitlines()) == len(values(model_shape()))


UP = "weight/layers.0.mlp.up.weight"
FIRST = "part-00000.safetensors"


def setting(*path: str | int, to: object) -> Callable[[Any], None]:
    """A damage: the value at a path of the JSON becomes another; `...` deletes it."""

    def damage(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        if to is ...:
            del document[path[-1]]
        else:
            document[path[-1]] = to

    return damage


def outside(name: str) -> Callable[[Any], None]:
    def damage(document: Any) -> None:
        document["files"][name] = document["files"].pop(FIRST)
        for record in document["tensors"].values():
            for piece in record["pieces"]:
                piece[0] = name if piece[0] == FIRST else piece[0]

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (setting("format", to="other"), r"manifest\.json: format = 'other' is not 'megatron_tlm checkpoint'"),
        (setting("format_version", to=2), r"format_version = 2 is not 1"),
        (setting("format_version", to=True), r"format_version = True is not 1"),
        (setting("format_version", to=...), r"format_version = None is not 1"),
        (setting("step", to=...), r"manifest\.json: step = None is missing"),
        (setting("surprise", to=1), r"surprise = 1 is not a field this version knows"),
        (setting("step", to=-1), r"step = -1 lies outside 0\.\."),
        (setting("step", to=1.5), r"step = 1\.5 is not an integer"),
        (setting("step", to=True), r"step = True is not an integer"),
        (setting("consumed_samples", to=1 << 80), r"consumed_samples = \d+ lies outside"),
        (setting("step", to=11), r"step = 11 but the directory is named after 10"),
        (setting("extra", "list", to=[1]), r"extra\.list = \[1\] is not a number, string"),
        (setting("config", to=[]), r"config = \[\] is not an object"),
        (setting("layout", "tensor", to=0), r"layout\.tensor = 0 lies outside 1\.\."),
        (setting("layout", "zero", to=4), r"layout\.zero = 4 lies outside 0\.\.3"),
        (setting("stages", to=[[0, 8]]), r"stages = .* has 1 elements, not 2"),
        (setting("stages", to=[[0, 4], [5, 8]]), r"stages\[1\] = \[5, 8\] is not .* starts at unit 4"),
        (setting("stages", to=[[0, 4], [4, 7]]), r"stages = .* ends at unit 7, the model has 8"),
        (setting("shape", "widths", to=[24, 16]), r"shape is of no model \(shape\.widths holds 2 widths"),
        (setting("shape", "widths", to="wide"), r"shape\.widths = 'wide' is not an array of integers"),
        (setting("shape", "hidden_size", to="8"), r"shape\.hidden_size = '8' is not an integer"),
        (setting("shape", "tied_embeddings", to=1), r"shape\.tied_embeddings = 1 is of the wrong type"),
        (setting("shape", "colour", to=1), r"shape is of no model \(shape fields colour are missing or unknown"),
        (setting("shape", "hidden_size", to=16), r"tensors\.weight/embedding\.weight = \[37, 8\] but .* \[37, 16\]"),
        (outside("../part-00000.safetensors"), r"\(key\) = '\.\./part-00000\.safetensors' does not match"),
        (outside("/etc/passwd"), r"\(key\) = '/etc/passwd' does not match"),
        (setting("tokenizer", to="../../secret"), r"tokenizer = '\.\./\.\./secret' does not match"),
        (setting("tokenizer", to="tokenizer.json"), r"tokenizer = 'tokenizer\.json' is not among the files"),
        (
            setting("files", FIRST, "bytes", to=1 << 61),
            r"part-00000\.safetensors has \d+ bytes but the manifest says \d+",
        ),
        (setting("files", FIRST, "sha256", to="ab"), r"sha256 = 'ab' does not match"),
        (setting("files", FIRST, to=...), r"tensors\.\S+\.pieces\[0\]\[0\] = 'part-00000\.safetensors' is not among"),
        (setting("tensors", UP, to=...), rf"tensors\.{UP} = absent but the model's shape asks for \[24, 8\]"),
        (setting("tensors", "Bad role/x", to={}), r"\(key\) = 'Bad role/x' does not match"),
        (setting("tensors", UP, "dtype", to="F12"), r"\.dtype = 'F12' is not one of F64"),
        (setting("tensors", UP, "shape", to=[24, 0]), r"\.shape = \[24, 0\] has a number outside 1\.\."),
        (setting("tensors", UP, "shape", to=[1] * 9), r"\.shape = .* has more than 8 dims"),
        (setting("tensors", UP, "shape", to=[1 << 40, 1 << 40]), rf"{UP} = the pieces cover 192 of \d+ elements"),
        (setting("tensors", UP, "pieces", 1, to=...), rf"{UP} = the pieces cover 96 of 192 elements"),
        (setting("tensors", UP, "pieces", 1, 1, to=[11, 0]), rf"{UP} = \[0:12,0:8\] and \[11:23,0:8\] overlap"),
        (setting("tensors", UP, "pieces", 1, 2, to=[13, 8]), rf"{UP} = \[12:25,0:8\] lies outside the shape \[24, 8\]"),
        (
            setting("tensors", UP, "pieces", 1, 2, to=[12]),
            rf"{UP} = .* at \[12, 0\] of size \[12\] has another number of dims",
        ),
        (setting("tensors", UP, "pieces", 1, to=[1, 2]), r"pieces\[1\] = \[1, 2\] has 2 elements, not 3"),
        (setting("tensors", UP, "pieces", 1, 0, to="latest"), r"pieces\[1\]\[0\] = 'latest' does not match"),
    ],
)
def test_damage_is_refused_by_name(checkpoint: Path, damage: Callable[[Any], None], message: str) -> None:
    path = checkpoint / "manifest.json"
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=message):
        check_complete(checkpoint)


def test_more_bytes_than_the_file_has_are_refused(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    document = json.loads(path.read_text())
    huge = {"dtype": "F64", "shape": [1 << 40], "pieces": [[FIRST, [0], [1 << 40]]]}
    document["tensors"]["state/head.norm.weight"] = huge
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"tensors in part-00000\.safetensors = \d+ bytes but the file has \d+"):
        check_complete(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"\x80\x04\x95pickled", "not valid JSON"),
        (b'{"format": "a", "format": "b"}', "key 'format' given twice"),
        (b'{"step": NaN}', "NaN is not a number"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", r"is not an object"),
        (b'{"step": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
    ids=["empty", "pickle", "twice", "nan", "deep", "array", "long number"],
)
def test_bad_json_is_refused(checkpoint: Path, text: bytes, message: str) -> None:
    (checkpoint / "manifest.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(checkpoint)


def test_a_manifest_of_a_gigabyte_is_not_even_read(checkpoint: Path) -> None:
    with open(checkpoint / "manifest.json", "r+b") as file:
        file.truncate((1 << 30) + 1)  # sparse: nothing is written
    with pytest.raises(CheckpointError, match=r"has 1073741825 bytes, above 1073741824"):
        read_manifest(checkpoint)


def test_a_dtype_other_than_the_file_s_is_refused_on_reading(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    document = json.loads(path.read_text())
    document["tensors"][UP]["dtype"] = "F16"
    path.write_text(json.dumps(document))
    with Reader(checkpoint) as reader, pytest.raises(CheckpointError, match=r"= BF16 \[12, 8\] but .* F16 \[12, 8\]"):
        reader.read("layers.0.mlp.up.weight", "weight")


def test_a_link_out_of_the_directory_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / FIRST).rename(tmp_path / "elsewhere")
    (checkpoint / FIRST).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors is a link to .*elsewhere, outside"):
        check_complete(checkpoint)


def test_a_linked_checkpoint_is_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    checkpoint.rename(tmp_path / "on-a-larger-disk")
    checkpoint.symlink_to(tmp_path / "on-a-larger-disk")
    assert find(checkpoint.parent) == checkpoint
