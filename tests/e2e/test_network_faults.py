"""What goes wrong between nodes: they differ, lack or lose something. Every rank ends, with one sentence."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.cli import doctor
from megatron_tlm.config.dump import dump
from megatron_tlm.doctor.network import Endpoint, rendezvous
from megatron_tlm.train.survival import rank_facts
from tests.e2e.crossing import TENSOR_INSIDE, across, on_corpus, refused, write_corpus
from tests.equivalence.launching import run_config
from tests.namespaces import Node

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
