"""Runs that cross a network: nodes are network namespaces, joined by a bridge that the test makes as root.

Most ranks here are forked into a namespace, one run goes through torchrun itself; kills of such runs are in
test_kills.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.config.dump import dump
from tests.e2e.commands import ROOT
from tests.e2e.crossing import TENSOR_INSIDE, across, on_corpus, refused
from tests.equivalence.launching import assert_equal_bits, launch, losses_of, run_config, tensors_of
from tests.namespaces import INTERFACE, Node

SLOW = "TLM_SLOW_TESTS" in os.environ
PIPE_AND_DATA = {"pipeline_model_parallel_size": 2}


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


def test_tensor_ranks_inside_a_node_and_stages_across(nodes: list[Node], tmp_path: Path) -> None:
    alone, config = (run_config(tmp_path / name, **TENSOR_INSIDE) for name in ("alone", "nodes"))
    assert launch(alone, 4).codes == [0] * 4
    ended = across(nodes[:2], config, 4)
    assert ended.codes == [0] * 4, ended.complained
    assert losses_of(config) == losses_of(alone)
    assert_equal_bits(tensors_of(config), tensors_of(alone))


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


def torchrun(node: Node, ranks: int, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Of one of two nodes, by the c10d rendezvous at node 0."""
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29511", f"--local-addr={node.address}"]
    meeting += ["--rdzv-conf", f"is_host={int(node.number == 0)},read_timeout=20"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={ranks}", *meeting]
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(
        node.command([*launcher, "-m", "megatron_tlm", *words]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **fixed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("each", "layout"),
    [
        pytest.param(1, {"pipeline_model_parallel_size": 2}, id="stages across"),
        pytest.param(
            2,
            TENSOR_INSIDE,
            id="tensor inside, stages across",
            marks=pytest.mark.skipif(not SLOW, reason="torch is imported four times; set TLM_SLOW_TESTS=1"),
        ),
    ],
)
def test_torchrun_on_two_nodes_is_the_run_of_one_machine(
    each: int, layout: dict[str, Any], nodes: list[Node], disks: list[Path], tmp_path: Path
) -> None:
    """The corpus under another path on each node."""
    alone = on_corpus(run_config(tmp_path / "alone", **layout), tmp_path / "local")
    reference = launch(alone, 2 * each)
    assert reference.codes == [0] * 2 * each, reference.complained
    config = on_corpus(run_config(tmp_path / "nodes", **layout), tmp_path / "local")
    (tmp_path / "run.yaml").write_text(dump(config))
    shutil.rmtree(tmp_path / "local")
    words = ("train", "--config", "run.yaml", "--data-path")
    started = [torchrun(node, each, tmp_path, *words, str(disks[node.number] / "corpus")) for node in nodes[:2]]
    try:
        said = [process.communicate(timeout=400)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert losses_of(config) == losses_of(alone)
    assert_equal_bits(tensors_of(config), tensors_of(alone))
