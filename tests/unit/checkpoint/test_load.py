"""The newest complete checkpoint is found and the others are spoken of; any box of any tensor can be read."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.checkpoint.load import Reader, check_hashes, find
from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import read_ordinal, step_directories
from megatron_tlm.checkpoint.tensor_file import FileRecord, hash_file
from megatron_tlm.errors import CheckpointError
from tests.unit.checkpoint.made import facts, flip, model_shape, row_halves, save, values
from tests.unit.checkpoint.test_tiling import split

SHAPE = model_shape(widths=(8,))
TENSORS = values(SHAPE)


def saved(root: Path, *steps: int) -> list[Path]:
    return [save(root, TENSORS, facts(SHAPE, step=step)) for step in steps]


def test_the_newest_is_found_without_a_word(tmp_path: Path) -> None:
    _, newest = saved(tmp_path, 5, 10)
    assert find(tmp_path, tell=pytest.fail) == newest


def test_the_number_of_digits_does_not_matter(tmp_path: Path) -> None:
    _, newest = saved(tmp_path, 99_999_999, 100_000_000)
    assert find(tmp_path, tell=pytest.fail) == newest


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (
            lambda path: (path / "part-00001.safetensors").unlink(),
            r"part-00001\.safetensors is missing but the manifest",
        ),
        (
            lambda path: (path / "part-00001.safetensors").write_bytes(b"x"),
            r"has 1 bytes but the manifest says \d+; it was cut",
        ),
        (
            lambda path: (path / "manifest.json").unlink(),
            r"manifest\.json cannot be read \(No such file or directory\)",
        ),
        (lambda path: (path / "manifest.json").write_bytes(b"{"), r"not valid JSON"),
    ],
    ids=["lost", "cut", "no manifest", "half a manifest"],
)
def test_a_damaged_one_is_passed_over_aloud(tmp_path: Path, damage: object, why: str) -> None:
    assert callable(damage)
    former, newest = saved(tmp_path, 5, 10)
    damage(newest)
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == former
    assert any(text.startswith("passed over step-00000010: ") for text in told)
    with pytest.raises(CheckpointError, match=why):
        find(tmp_path, 10)
    damage(former)
    with pytest.raises(CheckpointError, match=rf"no complete checkpoint; .*{why}.*{why}"):
        find(tmp_path, tell=told.append)


@pytest.mark.parametrize("text", [None, "", "step-00000005", "../elsewhere", "step-00000007", "\x00\xff"])
def test_a_wrong_pointer_is_told_and_not_followed(tmp_path: Path, text: str | None) -> None:
    _, newest = saved(tmp_path, 5, 10)
    (tmp_path / "latest").unlink()
    if text is not None:
        (tmp_path / "latest").write_text(text)
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == newest
    assert len(told) == 1
    said = {None: "nothing", "": "nothing", "\x00\xff": r"\x00\xff"}.get(text, text)
    assert f"latest says {said}; loading step-00000010" in told[0]


def test_a_pointer_of_rubbish_is_shown_short_and_harmless(tmp_path: Path) -> None:
    _, newest = saved(tmp_path, 5, 10)
    (tmp_path / "latest").write_bytes(bytes(range(256)) * 100)
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == newest
    assert told[0].isprintable()
    assert len(told[0]) < len(str(tmp_path)) + 150


def test_after_going_back_the_step_saved_last_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10, 15)
    (back,) = saved(tmp_path, 6)
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == back
    assert told == [
        "passed over step-00000015: it was saved before step-00000006, the run went back since",
        "passed over step-00000010: it was saved before step-00000006, the run went back since",
    ]


def test_a_step_can_be_asked_for(tmp_path: Path) -> None:
    former, newest = saved(tmp_path, 5, 10)
    assert find(tmp_path, 5) == former
    assert find(newest) == find(newest, 10) == newest
    with pytest.raises(CheckpointError, match=r"ckpt_step = 7 is not in .*; it has 5, 10"):
        find(tmp_path, 7)
    with pytest.raises(CheckpointError, match=r"is the checkpoint of step 10, not 5; give its parent"):
        find(newest, 5)


def test_nothing_to_load_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent is not a directory, so nothing can be loaded"):
        find(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"holds no step-\* directory, so there is no checkpoint"):
        find(tmp_path)
    (tmp_path / "latest").write_text("step-00000005\n")
    with pytest.raises(CheckpointError, match=r"so there is no checkpoint; give the directory that a run saved into"):
        find(tmp_path)


def test_a_step_killed_while_being_replaced_is_found(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 5)
    path.rename(tmp_path / ".step-00000005.replaced")
    assert find(tmp_path, tell=lambda _: None) == tmp_path / ".step-00000005.replaced"
    (again,) = saved(tmp_path, 5)
    assert find(tmp_path, tell=pytest.fail) == again
    assert step_directories(tmp_path) == [again]


def test_the_ordinal_is_read_off_the_first_lines(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 5, 10)
    assert (read_ordinal(first), read_ordinal(second), read_ordinal(tmp_path)) == (0, 1, -1)


def test_a_flipped_bit_is_seen_by_hash(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 5)
    flip(path / "part-00000.safetensors")
    with (
        Reader(path) as reader,
        pytest.raises(CheckpointError, match=r"part-00000\.safetensors: sha256 = \w+ but \w+ was"),
    ):
        check_hashes(path, reader.manifest)


def test_a_flipped_bit_sends_back_to_the_step_before(tmp_path: Path) -> None:
    former, newest = saved(tmp_path, 5, 10)
    flip(newest / "part-00001.safetensors")
    why = r"part-00001\.safetensors: sha256 = \w+ but \w+ was written; the file was damaged since"
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == former
    assert re.match(f"passed over step-00000010: .*{why}", told[0])
    for root, step in ((tmp_path, 10), (newest, None)):
        with pytest.raises(CheckpointError, match=why):
            find(root, step)
    assert find(tmp_path, hashes=False, tell=pytest.fail) == newest


def test_one_known_to_be_damaged_is_passed_over_for_the_reason_given(tmp_path: Path) -> None:
    former, newest = saved(tmp_path, 5, 10)
    told: list[str] = []
    assert find(tmp_path, hashes=False, damaged={newest: "x = damaged; mend it"}, tell=told.append) == former
    assert told[0] == "passed over step-00000010: x = damaged; mend it"
    with pytest.raises(CheckpointError, match="x = damaged; mend it"):
        find(newest, hashes=False, damaged={newest: "x = damaged; mend it"})


def test_ranks_share_the_files_and_leave_none_out(tmp_path: Path) -> None:
    path = save(tmp_path, TENSORS, facts(SHAPE), parts=5)
    manifest = read_manifest(path)
    for part in range(5):
        flip(path / f"part-{part:05d}.safetensors")
        seen = []
        for rank in range(3):
            try:
                check_hashes(path, manifest, rank=rank, ranks=3)
            except CheckpointError:
                seen.append(rank)
        assert seen == [part % 3]
        flip(path / f"part-{part:05d}.safetensors")


def test_a_file_that_the_disk_does_not_give_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former, newest = saved(tmp_path, 5, 10)

    def failing(path: Path) -> FileRecord:
        if path.parent == newest:
            raise OSError(5, "Input/output error")
        return hash_file(path)

    monkeypatch.setattr("megatron_tlm.checkpoint.load.hash_file", failing)
    told: list[str] = []
    assert find(tmp_path, tell=told.append) == former
    assert "part-00000.safetensors cannot be read (Input/output error)" in told[0]


def test_another_model_is_told_field_by_field(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 5)
    other = replace(SHAPE, num_attention_heads=2, widths=(16,), tied_embeddings=True)
    message = (
        r"num_attention_heads = 4 \(not 2\), widths = \(8,\) \(not \(16,\)\), tied_embeddings = False \(not True\)"
    )
    with Reader(path) as reader:
        reader.require(SHAPE)
        with pytest.raises(CheckpointError, match=f"another model: {message}; give the saved sizes"):
            reader.require(other)


@settings(max_examples=25)
@given(data=st.data())
def test_any_box_is_read_from_any_pieces(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    key = ("layers.0.mlp.down.weight", "master")
    tensor = TENSORS[key]
    boxes = {key: [(index % 2, box) for index, box in enumerate(split(tuple(tensor.shape), data))]}
    path = save(tmp_path_factory.mktemp("run"), TENSORS, facts(SHAPE), boxes=boxes)
    offset = tuple(data.draw(st.integers(0, extent)) for extent in tensor.shape)
    size = tuple(data.draw(st.integers(0, whole - start)) for whole, start in zip(tensor.shape, offset, strict=True))
    with Reader(path) as reader:
        found = reader.read(*key, offset, size)
    assert torch.equal(found, tensor[tuple(slice(start, start + n) for start, n in zip(offset, size, strict=True))])


def test_what_was_read_outlives_the_reader(tmp_path: Path) -> None:
    with Reader(save(tmp_path, TENSORS, facts(SHAPE), boxes=row_halves(TENSORS))) as reader:
        found = reader.read("embedding.weight", "master")
        found += 1
        assert torch.equal(reader.read("embedding.weight", "master"), TENSORS["embedding.weight", "master"])
    assert torch.equal(found, TENSORS["embedding.weight", "master"] + 1)


def test_what_was_not_saved_is_named(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 5)
    with Reader(path) as reader:
        assert reader.roles("embedding.weight") == ("exp_avg", "exp_avg_sq", "master", "weight")
        assert reader.tokenizer is None
        with pytest.raises(
            CheckpointError, match=r"lacks momentum/embedding\.weight, saved was exp_avg, exp_avg_sq, master, weight"
        ):
            reader.read("embedding.weight", "momentum")
        with pytest.raises(CheckpointError, match=r"lacks weight/other, saved was nothing of it"):
            reader.read("other", "weight")
        with pytest.raises(CheckpointError, match=r"\[30:40,0:8\] is outside the saved shape \[37, 8\]"):
            reader.read("embedding.weight", "weight", (30, 0), (10, 8))
        with pytest.raises(CheckpointError, match=r"outside the saved shape \[37, 8\]"):
            reader.read("embedding.weight", "weight", (30,), (1,))
