"""Runs that cross a network: nodes are network namespaces, joined by a bridge that the test makes as root.

Most ranks here are forked into a namespace, half a second each; one run goes through torchrun itself.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_tlm.cli import doctor
from megatron_tlm.config.dump import dump
from megatron_tlm.config.schema import Config
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.doctor.network import Endpoint, rendezvous
from megatron_tlm.train.survival import rank_facts
from tests.e2e.commands import ROOT
from tests.equivalence.launching import Launch, assert_equal_bits, launch, losses_of, run_config, tensors_of
from tests.equivalence.training import VOCAB
from tests.namespaces import INTERFACE, Node, network

TENSOR_INSIDE = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
PIPE_AND_DATA = {"pipeline_model_parallel_size": 2}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with network(4) as made:
        yield made


def write_corpus(folder: Path, seed: int = 1) -> None:
    chance = np.random.RandomState(seed)
    with IndexedDatasetWriter(folder / "corpus", np.dtype(np.uint16)) as writer:
        for _ in range(60):
            writer.add_document(chance.randint(0, VOCAB, chance.randint(1, 60)))


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Four local disks with a copy of one corpus, and the place where each node mounts its own."""
    write_corpus(tmp_path / "local")
    folders = [tmp_path / f"disk-{number}" for number in range(4)]
    for folder in folders:
        shutil.copytree(tmp_path / "local", folder)
    return folders


def on_corpus(config: Config, folder: Path) -> Config:
    data = replace(config.data, mock_data=False, data_path=(str(folder / "corpus"),), data_cache_path=str(folder))
    return replace(config, data=replace(data, split="80,20,0"))


def across(
    nodes: list[Node],
    config: Config,
    ranks: int,
    *,
    binds: Callable[[int], dict[Path, Path]] = lambda number: {},
    also: Callable[[int], None] = lambda rank: None,
    **options: Any,
) -> Launch:
    """`launch`, its ranks shared out over the nodes; `binds(node)` are the folders that a node has of its own."""
    each = ranks // len(nodes)

    def move(rank: int) -> None:
        number = rank // each
        nodes[number].enter(binds(number))
        os.environ.update(MASTER_ADDR=nodes[0].address, GLOO_SOCKET_IFNAME=INTERFACE, LOCAL_RANK=str(rank % each))
        os.environ.update(GROUP_RANK=str(number), GROUP_WORLD_SIZE=str(len(nodes)))
        also(rank)

    return launch(config, ranks, before=move, **options)


def refused(ended: Launch) -> str:
    """The sentence that all ranks ended with."""
    assert ended.codes == [2] * len(ended.codes), ended.complained
    assert "Traceback" not in ended.complained
    # [W: torch asks the network for names of addresses, and nobody knows them here.
    lines = [line for line in ended.complained.splitlines() if not line.startswith("[W")]
    sentences = {line.removeprefix("megatron-tlm: error: ") for line in lines}
    assert len(sentences) == 1, ended.complained
    return sentences.pop()


def test_pipeline_and_data_ranks_over_four_nodes_with_disks_of_their_own(
    nodes: list[Node], disks: list[Path], tmp_path: Path
) -> None:
    """Data and sample orders on each node's own disk, checkpoints on a shared one."""
    alone = on_corpus(run_config(tmp_path / "alone", **PIPE_AND_DATA), tmp_path / "local")
    assert launch(alone, 4).codes == [0] * 4
    config = on_corpus(run_config(tmp_path / "nodes", **PIPE_AND_DATA), tmp_path / "local")
    ended = across(nodes, config, 4, binds=lambda number: {tmp_path / "local": disks[number]})
    assert ended.codes == [0] * 4, ended.complained
    assert losses_of(config) == losses_of(alone)
    assert_equal_bits(tensors_of(config), tensors_of(alone))
    caches = [len(list(disk.glob("*/cache.json"))) for disk in disks]
    assert caches == [caches[0]] * 4
    assert caches[0] > 0


def test_a_run_goes_on_from_copies_on_each_node(nodes: list[Node], tmp_path: Path) -> None:
    first = run_config(tmp_path / "first", exit_interval=5, save_interval=4)
    assert launch(first, 2).codes == [0, 0]
    for number in range(2):
        shutil.copytree(tmp_path / "first" / "ck", tmp_path / f"copy-{number}")
    place = tmp_path / "copy"
    place.mkdir()
    config = run_config(tmp_path / "second", load=str(place))
    ended = across(nodes[:2], config, 2, binds=lambda number: {place: tmp_path / f"copy-{number}"})
    assert ended.codes == [0, 0], ended.complained
    whole = run_config(tmp_path / "whole")
    assert launch(whole, 2).codes == [0, 0]
    assert losses_of(config) == losses_of(whole)[5:]
    # A node that lacks the newest step would go on from an older one.
    shutil.rmtree(tmp_path / "copy-1" / "step-00000005")
    config = run_config(tmp_path / "third", load=str(place))
    ended = across(nodes[:2], config, 2, binds=lambda number: {place: tmp_path / f"copy-{number}"})
    assert re.fullmatch(
        r"checkpoint to go on from = step-00000005 \w{12} on node-0 \(node 0\), step-00000004 \w{12} on node-1 "
        r"\(node 1\); let all nodes see the same --load folder, or give a --ckpt-step that all have",
        refused(ended),
    )


Change = Callable[[int], None]


def unnamed_interface(rank: int) -> None:
    del os.environ["GLOO_SOCKET_IFNAME"]


def absent_interface(rank: int) -> None:
    if rank == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth7"


def other_code(rank: int) -> None:
    if rank == 1:
        hashes = dict(rank_facts.source_hashes()) | {"train/loop.py": "0" * 12}
        rank_facts.source_hashes = lambda: hashes  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            unnamed_interface,
            r"gloo on node-0 \(node 0\) = 127\.0\.0\.1 is its loopback, which the 1 other nodes cannot reach; "
            r"export GLOO_SOCKET_IFNAME=<interface> on every node, `megatron-tlm doctor` lists them",
        ),
        (
            absent_interface,
            r"rank 1: GLOO_SOCKET_IFNAME = eth7 is none of the 2 interfaces of node-1; give one of eth0",
        ),
        (
            other_code,
            r"code = \w{12} on node-0 \(node 0\), \w{12} on node-1 \(node 1\), in train/loop.py; "
            r"install the same megatron_tlm on all of them",
        ),
    ],
    ids=["unnamed interface", "absent interface", "other code"],
)
def test_nodes_that_cannot_work_together_say_why_at_once(
    change: Change, sentence: str, nodes: list[Node], tmp_path: Path
) -> None:
    start = time.monotonic()
    assert re.fullmatch(sentence, refused(across(nodes[:2], run_config(tmp_path), 2, also=change)))
    assert time.monotonic() - start < 60


def test_data_that_one_node_lacks_or_has_otherwise(nodes: list[Node], disks: list[Path], tmp_path: Path) -> None:
    config = on_corpus(run_config(tmp_path / "run"), tmp_path / "local")

    def own(number: int) -> dict[Path, Path]:
        return {tmp_path / "local": disks[number]}

    write_corpus(disks[1], seed=2)
    sentence = refused(across(nodes[:2], config, 2, binds=own))
    corpus = re.escape(str(tmp_path / "local" / "corpus"))
    assert re.fullmatch(
        rf"data = tokens of {corpus} with fingerprint \w{{8}} on node-0 \(node 0\), \w{{8}} on node-1 \(node 1\); copy "
        r"the \.bin/\.idx pair anew, `megatron-tlm data verify` prints the hash of one",
        sentence,
    )
    (disks[1] / "corpus.idx").unlink()
    sentence = refused(across(nodes[:2], config, 2, binds=own))
    assert re.fullmatch(rf"rank 1: {corpus}\.idx does not exist; .*", sentence)


def test_a_save_folder_that_is_not_shared_is_refused_before_a_step(nodes: list[Node], tmp_path: Path) -> None:
    config = run_config(tmp_path)
    for place in ("ck", "ck-1"):
        (tmp_path / place).mkdir()
    ended = across(nodes[:2], config, 2, binds=lambda number: {tmp_path / "ck": tmp_path / "ck-1"} if number else {})
    assert refused(ended) == (
        f"checkpoint.save = {tmp_path / 'ck'} on node-0 (node 0) is another folder on node-1 (node 1); "
        "give a folder on a file system that all nodes share"
    )
    assert not list((tmp_path / "ck").iterdir())


@pytest.mark.parametrize(("ranks", "changes"), [(2, {}), (4, TENSOR_INSIDE)], ids=["data", "pipe"])
def test_a_cable_that_is_pulled_ends_every_rank_within_the_timeout(
    ranks: int, changes: dict[str, Any], nodes: list[Node], tmp_path: Path
) -> None:
    endless = {"train_iters": 100_000, "eval_interval": 100_000, "distributed_timeout_minutes": 0.1}
    config = run_config(tmp_path, **endless, **changes)
    pulled = []

    def pull(pids: list[int]) -> None:
        metrics = tmp_path / "log" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        nodes[1].link("down")
        pulled.append(time.monotonic())

    try:
        ended = across(nodes[:2], config, ranks, meanwhile=pull, timeout_seconds=60)
    finally:
        nodes[1].link("up")
    assert time.monotonic() - pulled[0] < 40
    assert all(code > 0 for code in ended.codes), ended.codes
    assert re.search(r"rank \d.*", ended.complained)


def test_the_doctor_names_the_node_at_fault(nodes: list[Node], tmp_path: Path) -> None:
    config = run_config(tmp_path)
    (tmp_path / "run.yaml").write_text(dump(config))
    for place in ("ck", "ck-1"):
        (tmp_path / place).mkdir()

    def look(rank: int) -> None:
        code = doctor.main(["--config", str(tmp_path / "run.yaml"), "--no-step"])
        sys.stdout.flush()
        os._exit(code)

    own = {tmp_path / "ck": tmp_path / "ck-1"}
    ended = across(nodes[:2], config, 2, binds=lambda number: own if number else {}, also=look)
    assert ended.codes == [1, 1], ended.complained
    assert ended.out[0].splitlines()[-1] == (
        f"not ready: checkpoint.save shared: checkpoint.save = {tmp_path / 'ck'} on node-0 (node 0) is another folder "
        "on node-1 (node 1); give a folder on a file system that all nodes share"
    )
    ended = across(nodes[:2], config, 2, also=look)
    assert ended.codes == [0, 0], ended.complained
    assert "2 ranks between nodes: sums right" in ended.out[0]


def test_a_master_behind_a_dead_link_is_told(nodes: list[Node], tmp_path: Path) -> None:
    def look(rank: int) -> None:
        if rank == 1:
            print(rendezvous(Endpoint(nodes[0].address, 29500), node_rank=1, nodes=2).text, flush=True)
        os._exit(0)

    said = across(nodes[:2], run_config(tmp_path), 2, also=look).out[1]
    assert said == "10.77.0.1 (10.77.0.1) is reached, nothing listens at port 29500 yet\n"
    nodes[0].link("down")
    try:
        said = across(nodes[:2], run_config(tmp_path), 2, also=look).out[1]
    finally:
        nodes[0].link("up")
    assert re.fullmatch(r"10\.77\.0\.1:29500 \(10\.77\.0\.1\) cannot be reached \(.+\)\n", said)


def torchrun(node: Node, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Two ranks of two nodes, by the c10d rendezvous at node 0."""
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29511", f"--local-addr={node.address}"]
    meeting += ["--rdzv-conf", f"is_host={int(node.number == 0)},read_timeout=20"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", *meeting]
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(
        node.command([*launcher, "-m", "megatron_tlm", *words]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **fixed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_torchrun_on_two_nodes_is_the_run_of_one_machine(nodes: list[Node], disks: list[Path], tmp_path: Path) -> None:
    """Tensor ranks inside a node, stages across; the corpus under another path on each node."""
    alone = on_corpus(run_config(tmp_path / "alone", **TENSOR_INSIDE), tmp_path / "local")
    reference = launch(alone, 4)
    assert reference.codes == [0] * 4, reference.complained
    config = on_corpus(run_config(tmp_path / "nodes", **TENSOR_INSIDE), tmp_path / "local")
    (tmp_path / "run.yaml").write_text(dump(config))
    shutil.rmtree(tmp_path / "local")
    started = [
        torchrun(node, tmp_path, "train", "--config", "run.yaml", "--data-path", str(disks[node.number] / "corpus"))
        for node in nodes[:2]
    ]
    try:
        said = [process.communicate(timeout=400)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert losses_of(config) == losses_of(alone)
    assert_equal_bits(tensors_of(config), tensors_of(alone))
