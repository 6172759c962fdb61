"""Twenty kills of real ranks under one torchrun: it ends as if nothing had been. Minutes, so only where asked for."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.dump import dump
from megatron_tlm.config.schema import Config, DataConfig
from tests.e2e.crossing import TENSOR_INSIDE
from tests.e2e.killing import Hunter, Launch, Torchrun
from tests.equivalence.killing import random_corpus
from tests.equivalence.launching import assert_equal_bits, events_of, launch, metrics_of, run_config, tensors_of
from tests.namespaces import Node, network

pytestmark = pytest.mark.skipif(
    "TLM_SLOW_TESTS" not in os.environ, reason="kills of launched runs take minutes; set TLM_SLOW_TESTS=1"
)

MOMENTS = ("start", "index", "groups", "step", "save", "evaluation", "step", "save", "step", "evaluation")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Large enough that its order takes a tenth of a second to build."""
    return random_corpus(tmp_path_factory.mktemp("kills") / "corpus", documents=20_000)


def run_of(folder: Path, corpus: str, **changes: object) -> Config:
    """Saved every third step, evaluated every tenth, its sample orders kept on disk."""
    folder.mkdir()
    config = run_config(folder, save_interval=3, keep_last=2, eval_interval=10, eval_iters=10, **changes)
    data = DataConfig(data_path=(corpus,), split="80,20,0", data_cache_path=str(folder / "cache"))
    config = replace(config, data=data)
    (folder / "run.yaml").write_text(dump(config))
    return config


def in_turn(chance: random.Random) -> Iterator[str]:
    """Every moment as often as it stands in the list, in random order."""
    while True:
        yield from chance.sample(MOMENTS, len(MOMENTS))


def assert_undisturbed(killed: Config, quiet: Config, hunter: Hunter) -> None:
    """The same curve and weights, nothing half left, and every start from the newest whole checkpoint of its time."""
    assert metrics_of(killed) == metrics_of(quiet)
    assert_equal_bits(tensors_of(killed), tensors_of(quiet))
    last, root = killed.training.train_iters or 0, Path(killed.checkpoint.save or "")
    assert sorted(path.name for path in root.iterdir()) == ["latest", f"step-{last - 3:08d}", f"step-{last:08d}"]
    remaining = iter(hunter.newest)
    for event in events_of(killed):
        if event["event"] == "resume":
            source = None if event["source"] is None else Path(event["source"])
            assert source in remaining, f"{source} was not the newest of its time: {hunter.newest}"


def test_twenty_kills_under_one_torchrun_leave_no_trace(tmp_path: Path, corpus: str) -> None:
    kills = 20
    quiet, killed = (
        run_of(tmp_path / name, corpus, train_iters=150, pipeline_model_parallel_size=2) for name in ("quiet", "killed")
    )
    words = ("train", "--config", "run.yaml")
    run = Launch(tmp_path / "killed", words, ("--standalone", "--nproc-per-node=2", f"--max-restarts={kills}"))
    torchrun = run.start()
    chance = random.Random(7)
    hunter = Hunter(run, killed, chance)
    for _, moment in zip(range(kills), in_turn(chance), strict=False):
        hunter.kill(moment, hunter.new_ranks(2))
    hunter.new_ranks(2)
    assert run.end() == [0], torchrun.said
    assert run.left() == [], "a process is left"
    assert launch(quiet, 2, timeout_seconds=600).codes == [0, 0]
    assert_undisturbed(killed, quiet, hunter)
    assert f"start {kills + 1} of this run: it goes on from {killed.checkpoint.save}" in torchrun.said


def test_kills_on_two_nodes_leave_no_trace(tmp_path: Path, corpus: str) -> None:
    """Of ranks, of a node with all that runs on it, of its torchrun alone; then a cable is pulled. Whoever looks after
    a node starts its torchrun again; the other node's has waited for it."""
    changes = {"train_iters": 120, "distributed_timeout_minutes": 1.0, **TENSOR_INSIDE}
    quiet, killed = (run_of(tmp_path / name, corpus, **changes) for name in ("quiet", "killed"))
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29517", "--nnodes=2", "--nproc-per-node=2")
    run = Launch(tmp_path / "killed", ("train", "--config", "run.yaml"), (*meeting, "--max-restarts=20"))
    hunter = Hunter(run, killed, random.Random(11))

    def start(node: Node) -> Torchrun:
        conf = f"is_host={int(node.number == 0)},read_timeout=20,join_timeout=400"
        return run.start(node, (f"--local-addr={node.address}", "--rdzv-conf", conf))

    with network(2) as nodes:
        first, second = start(nodes[0]), start(nodes[1])
        for moment in ("step", "start", "save", "index"):
            hunter.kill(moment, hunter.new_ranks(4))
        # The whole node: power, a kernel that gave up.
        hunter.wait("step", hunter.new_ranks(4))
        for pid in (second.process.pid, *second.ranks()):
            os.kill(pid, signal.SIGKILL)
        second = start(nodes[1])
        # Its torchrun alone: memory ran out, and the kernel chose that.
        hunter.wait("step", hunter.new_ranks(4))
        os.kill(second.process.pid, signal.SIGKILL)
        second = start(nodes[1])
        hunter.wait("step", hunter.new_ranks(4))
        nodes[1].link("down")
        pulled = time.monotonic()
        try:
            run.until(lambda: second.process.poll() is not None, "the end of the torchrun that was cut off")
            cut_off = time.monotonic() - pulled
        finally:
            nodes[1].link("up")
        last = start(nodes[1])
        hunter.new_ranks(4)
        codes = run.end()
    assert (first.process.returncode, last.process.returncode) == (0, 0), run.said
    assert len([code for code in codes if code == 0]) == 2, codes
    assert run.left() == [], "a process is left"
    assert cut_off < 60 + 10 + 30 + 30, "the timeout, its grace, torchrun's, and a busy machine's"
    assert run.said.count("torchrun of a node = gone after step ") == 1, run.said
    assert launch(quiet, 4, timeout_seconds=600).codes == [0] * 4
    assert_undisturbed(killed, quiet, hunter)
