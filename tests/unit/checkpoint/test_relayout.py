"""Any layout to any other, nothing lost: bits, order, facts; refusals before a byte; a bounded memory."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatron_tlm.checkpoint import relayout
from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.checkpoint.save import begin
from megatron_tlm.checkpoint.verify import tensor_hash, verify
from megatron_tlm.checkpoint.widen import padded_widths
from megatron_tlm.errors import CheckpointError, PlanError
from megatron_tlm.plan.grid import Grid
from tests.unit.checkpoint.made import convert, facts, flip, model_shape, row_halves, save, values

LAYOUTS = st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(1, 3))


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


def same_tensors(path: Path, tensors: dict[tuple[str, str], torch.Tensor]) -> bool:
    with Reader(path) as reader:
        found = {key: reader.read(*key) for key in reader.manifest.tensors}
    return found.keys() == tensors.keys() and all(
        found[key].dtype == tensors[key].dtype
        and torch.equal(found[key].reshape(-1).view(torch.uint8), tensors[key].reshape(-1).view(torch.uint8))
        for key in tensors
    )


@settings(max_examples=8)
@given(tied=st.booleans(), layouts=st.lists(LAYOUTS, min_size=2, max_size=3))
def test_a_to_b_to_a_keeps_every_bit(
    tmp_path_factory: pytest.TempPathFactory, tied: bool, layouts: list[tuple[int, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    shape = model_shape(tied=tied)
    tensors = values(shape)
    cut = row_halves(tensors)
    tensors["embedding.weight", "row_mean"] = torch.randn(37)  # a factored state: not the parameter's shape
    tensors["embedding.weight", "count"] = torch.tensor(9)
    tensors["head.norm.weight", "weight"][0] = float("nan")
    tensors["rng.cuda", "state"] = torch.arange(16, dtype=torch.uint8)
    save(root / "saved", tensors, facts(shape), boxes=cut)
    former = root / "saved"
    for index, (tensor, pipe, data) in enumerate([*layouts, layouts[0]]):
        target = convert(former, root / str(index), tensor=tensor, pipe=pipe, data=data)
        assert same_tensors(target, tensors)
        assert verify(find(former), target) == len(tensors)
        former = root / str(index)
    # The same layout gives the same files, whatever lay between.
    first, last = (root / "0" / "step-00000010", root / str(len(layouts)) / "step-00000010")
    assert {name: text for name, (_, text) in contents(first).items()} == {
        name: text for name, (_, text) in contents(last).items()
    }


def test_a_rank_finds_its_shard_in_its_own_part(tmp_path: Path) -> None:
    tensors = values(model_shape())
    save(tmp_path / "a", tensors, facts(model_shape()))
    convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=2)
    parts = [load_file(tmp_path / "b" / "step-00000010" / f"part-{number:05d}.safetensors") for number in range(4)]
    up, down = (tensors[f"layers.0.mlp.{name}.weight", "weight"] for name in ("up", "down"))
    assert torch.equal(parts[0]["weight/layers.0.mlp.up.weight[0:12,0:8]"], up[:12])
    assert torch.equal(parts[1]["weight/layers.0.mlp.up.weight[12:24,0:8]"], up[12:])
    assert torch.equal(parts[1]["weight/layers.0.mlp.down.weight[0:8,12:24]"], down[:, 12:])
    # 37 rows padded to 48: 24 for the first rank, 13 and padding, which is not stored, for the second.
    assert parts[1]["weight/embedding.weight[24:37,0:8]"].shape == (13, 8)
    assert "weight/head.norm.weight" in parts[2]
    assert not any("embedding" in key for key in (*parts[2], *parts[3]))


def test_facts_and_tokenizer_come_along_and_only_the_layout_changes(tmp_path: Path) -> None:
    shape = model_shape()
    (tmp_path / "tokenizer.json").write_text("{}")
    about = facts(shape, grid=Grid(tensor=2))
    save(tmp_path / "a", values(shape), about, tokenizer=tmp_path / "tokenizer.json")
    with Reader(convert(tmp_path / "a", tmp_path / "b", tensor=1, pipe=2)) as reader:
        found = reader.manifest.facts
        assert reader.tokenizer is not None
        assert reader.tokenizer.read_text() == "{}"
    assert (found.grid, found.zero_stage) == (Grid(pipe=2), 1)
    assert [len(stage) for stage in found.stages] != [8, 0]
    assert found.config["parallel"] == {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
    for name in ("step", "consumed_samples", "consumed_tokens", "optimizer_steps", "shape", "extra"):
        assert getattr(found, name) == getattr(about, name)


def test_the_source_is_not_touched(tmp_path: Path) -> None:
    save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    before = contents(tmp_path / "a")
    verify(find(tmp_path / "a"), convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1))
    assert contents(tmp_path / "a") == before


def test_one_step_among_several_can_be_converted(tmp_path: Path) -> None:
    for step in (5, 10):
        save(tmp_path / "a", values(model_shape()), facts(model_shape(), step=step))
    assert convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1, step=5).name == "step-00000005"
    assert convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1).name == "step-00000010"
    assert find(tmp_path / "b", tell=pytest.fail).name == "step-00000010"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint, and nothing else in the test's directory when the test is over."""
    save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    before = contents(tmp_path)
    yield tmp_path / "a"
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_every_offending_layer_and_the_degrees_that_work_are_named(source: Path) -> None:
    offenders = r"num_attention_heads = 4, num_query_groups = 2, layer 1 width 16, layer 2 width 8"
    with pytest.raises(PlanError, match=rf"= 3 does not divide {offenders}; use one of \[1, 2, 4\]"):
        convert(source, source.parent / "b", tensor=3, pipe=1)


@pytest.mark.parametrize("ends", [(8,), (3, 3, 8), (3, 7), (3, 2, 8)])
def test_stages_of_another_grid_or_model_are_refused(source: Path, ends: tuple[int, ...]) -> None:
    stages = tuple(range(first, stop) for first, stop in pairwise((0, *ends)))
    with pytest.raises(PlanError, match=r"stages = 0\.\..* are not 2 runs that follow each other over 8 units"):
        relayout.convert(source, source.parent / "b", tensor=1, pipe=2, stages=stages)


def test_a_degree_of_none_is_refused(source: Path) -> None:
    with pytest.raises(PlanError, match=r"grid\.data = 0 is below 1"):
        convert(source, source.parent / "b", tensor=1, pipe=1, data=0)


@pytest.mark.parametrize("target", ["a", "a/../a", "a/step-00000010", "a/step-00000010/deeper", "a/b"])
def test_writing_into_the_source_is_refused(source: Path, target: str) -> None:
    with pytest.raises(CheckpointError, match=r"save_dir = .* is the source itself or inside it; give"):
        convert(source, source.parent / target, tensor=2, pipe=1)


def test_a_damaged_source_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    flip(save(tmp_path / "a", values(model_shape()), facts(model_shape())) / "part-00000.safetensors")
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors: sha256 = .* damaged since"):
        convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1)
    assert not (tmp_path / "b").exists()


def test_a_target_that_is_a_file_is_refused(source: Path) -> None:
    with pytest.raises(CheckpointError, match=r"save_dir = /dev/null is not a directory"):
        convert(source, Path("/dev/null"), tensor=2, pipe=1)


def test_a_full_disk_is_refused_before(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: os.terminal_size((1, 1000)) and type("Usage", (), {"free": 1000})
    )
    with pytest.raises(CheckpointError, match=r"save_dir = .*b has 1000 bytes free but \d+ are needed; make room"):
        convert(source, source.parent / "b", tensor=2, pipe=1)


def test_a_failure_half_way_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(done: int, whole: int) -> None:
        if done > whole // 2:
            raise CheckpointError("half way")

    with pytest.raises(CheckpointError, match="half way"):
        convert(source, source.parent / "b", tensor=2, pipe=2, progress=fail)


def test_a_folder_that_another_writes_in_is_left_alone(tmp_path: Path) -> None:
    save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    with FolderLock(tmp_path / "b"):
        unfinished = begin(tmp_path / "b", 10)
        with pytest.raises(CheckpointError, match=r"b is held by another run; wait for it"):
            convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1)
        assert unfinished.is_dir()
    unfinished.rmdir()
    convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["latest", "step-00000010"]


def test_the_same_step_is_not_written_twice(tmp_path: Path) -> None:
    save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1)
    before = contents(tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"save_dir = .*b already has step-00000010; give another directory"):
        convert(tmp_path / "a", tmp_path / "b", tensor=1, pipe=1)
    assert contents(tmp_path / "b") == before


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    tensors = values(model_shape())
    save(tmp_path / "a", tensors, facts(model_shape()))
    told: list[tuple[int, int]] = []
    convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=2, progress=lambda done, whole: told.append((done, whole)))
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert told[-1] == (size_bytes, size_bytes)
    assert told == sorted(told)


def test_verify_names_what_differs(tmp_path: Path) -> None:
    tensors = values(model_shape())
    source = save(tmp_path / "a", tensors, facts(model_shape()))
    other = {key: tensor.clone() for key, tensor in tensors.items()}
    other["layers.1.mlp.up.weight", "exp_avg"].view(torch.int32)[3, 3] ^= 1
    target = save(tmp_path / "b", other, facts(model_shape()), boxes=row_halves(tensors))
    with pytest.raises(
        CheckpointError,
        match=r"step-00000010 holds other bytes than .* for exp_avg/layers\.1\.mlp\.up\.weight; convert again",
    ):
        verify(source, target)
    del other["layers.1.mlp.up.weight", "exp_avg"]
    target = save(tmp_path / "c", other, facts(model_shape()))
    with pytest.raises(CheckpointError, match=r"do not share exp_avg/layers\.1\.mlp\.up\.weight; convert again"):
        verify(source, target)


def test_verify_sees_a_source_that_rotted(tmp_path: Path) -> None:
    source = save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    target = convert(tmp_path / "a", tmp_path / "b", tensor=2, pipe=1)
    part = source / "part-00000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"part-00000\.safetensors: sha256 = .* damaged since"):
        verify(source, target)


def test_a_tensor_s_hash_tells_bits_dtype_and_shape(tmp_path: Path) -> None:
    tensors = values(model_shape())
    tensors["x", "a"], tensors["x", "b"] = torch.zeros(4, 2), torch.zeros(2, 4)
    tensors["x", "c"], tensors["x", "d"] = torch.zeros(4, 2, dtype=torch.int32), -torch.zeros(4, 2)
    with Reader(save(tmp_path, tensors, facts(model_shape()))) as reader:
        assert len({tensor_hash(reader, "x", role) for role in "abcd"}) == 4


# 100 MB in tensors of up to 49 MB, so that holding two tensors, or the whole, would show.
MEASURED = textwrap.dedent("""
    import os, sys, threading, time
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    os.fsync = lambda _: None
    from tests.unit.checkpoint.made import Piece, convert, facts, flip, model_shape
    from megatron_tlm.checkpoint.save import begin, commit, write_part
    from megatron_tlm.plan.units import build_units

    root = Path(sys.argv[1])
    shape = model_shape(vocab=24_000, hidden=512, widths=(512,), tied=True)
    specs = [spec for unit in build_units(shape) for spec in unit.parameters]
    pieces = [
        Piece(spec.name, role, spec.shape, (0,) * len(spec.shape), spec.shape, torch.float32, load)
        for spec in specs
        for load in [lambda shape=spec.shape: torch.ones(shape)]
        for role in ("weight", "exp_avg")
    ]
    partial = begin(root / "a", 1)
    write_part(partial, 0, pieces)
    commit(partial, facts(shape, step=1), parts=1)

    def anonymous_bytes():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    def watch():
        while not over.is_set():
            peaks.append(anonymous_bytes())
            time.sleep(0.002)

    for index, (tensor, pipe, data) in enumerate([(4, 2, 1), (1, 1, 1)]):
        before, peaks, over = anonymous_bytes(), [], threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        convert(root / "ab"[index], root / "bc"[index], tensor=tensor, pipe=pipe, data=data, workers=2)
        over.set()
        watcher.join()
        print(max(peaks) - before)
""")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see memory")
def test_memory_is_a_few_blocks_whatever_the_tensors(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    split, merged = map(int, run.stdout.split())
    # Two workers with a block of 4 MB each and some change.
    assert split < 30e6
    assert merged < 30e6


def test_widths_that_do_not_fit_can_be_padded(tmp_path: Path) -> None:
    shape = model_shape(widths=(24, 18, 10))
    tensors = values(shape)
    about = facts(shape)
    source = save(tmp_path / "a", tensors, replace(about, config={**about.config, "taper": {"layer_widths": []}}))
    with pytest.raises(PlanError, match=r"= 4 does not divide .*layer 1 width 18, layer 2 width 10"):
        convert(tmp_path / "a", tmp_path / "b", tensor=4, pipe=1)
    target = convert(tmp_path / "a", tmp_path / "b", tensor=4, pipe=1, pad_widths=True)
    assert verify(source, target, widths=(24, 20, 12)) == len(tensors)
    with Reader(target) as reader:
        assert reader.manifest.facts.shape == replace(shape, widths=(24, 20, 12))
        assert reader.manifest.facts.config["taper"] == {"layer_widths": [24, 20, 12]}
        for role in ("weight", "exp_avg_sq"):
            up = reader.read("layers.1.mlp.up.weight", role)
            assert torch.equal(up[:18], tensors["layers.1.mlp.up.weight", role])
            assert not up[18:].any()
            down = reader.read("layers.2.mlp.down.weight", role)
            assert torch.equal(down[:, :10], tensors["layers.2.mlp.down.weight", role])
            assert not down[:, 10:].any()
    with pytest.raises(CheckpointError, match="holds other bytes than"):
        verify(source, target)


def test_padding_adds_nothing_where_all_fits_and_cannot_add_heads(tmp_path: Path) -> None:
    source = save(tmp_path / "a", values(model_shape()), facts(model_shape()))
    assert verify(source, convert(tmp_path / "a", tmp_path / "b", tensor=4, pipe=1, pad_widths=True))
    with pytest.raises(PlanError, match=r"= 3 does not divide num_attention_heads = 4, num_query_groups = 2; use"):
        convert(tmp_path / "a", tmp_path / "c", tensor=3, pipe=1, pad_widths=True)


def test_levels_that_share_a_width_are_not_padded() -> None:
    shape = replace(model_shape(widths=(24, 20)), cms_levels=2)
    assert padded_widths(shape, 2) == (24, 20)
    with pytest.raises(CheckpointError, match="cms_levels = 2 share each layer's width, which padding would"):
        padded_widths(shape, 4)
