"""torchrun starts a run again by itself after a kill, and it goes on from what it saved; nobody is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.e2e.commands import PACKAGE, ROOT

STEPS = 40
FLAGS = """
    --preset tiny --mock-data --vocab-size 64 --seq-length 16 --hidden-size 32 --num-attention-heads 2
    --num-query-groups 2 --ffn-hidden-size 64 --width-multiple 8 --num-layers 2 --micro-batch-size 1
    --global-batch-size 2 --eval-interval 10 --eval-iters 1 --save ck --save-interval 4 --keep-last 2 --log-dir log
    --distributed-timeout-minutes 2
"""


def ranks_of(mark: str) -> dict[str, int]:
    """Rank -> process, of all that inherited `mark` and are a rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"TLM_MARK={mark}" in variables:
            rank = next((item.removeprefix("RANK=") for item in variables if item.startswith("RANK=")), None)
            found["torchrun" if rank is None else rank] = int(folder.name)
    return found


def steps_in(log: Path) -> int:
    return (log / "metrics.jsonl").read_text().count('"loss"') if (log / "metrics.jsonl").exists() else 0


def test_a_rank_is_killed_and_torchrun_goes_on_to_the_end(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TLM_MARK": mark}
    fixed |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (tmp_path / "out").open("w") as out:
        run = subprocess.Popen(
            [*launcher, "--max-restarts", "1", *PACKAGE, "train", *FLAGS.split(), "--train-iters", str(STEPS)],
            cwd=tmp_path,
            env={**os.environ, **fixed},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + 180
        while not any((tmp_path / "ck").glob("step-*")) and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.02)
        os.kill(ranks_of(mark)["1"], signal.SIGKILL)
        code = run.wait(timeout=240)
    said = (tmp_path / "out").read_text()
    assert code == 0, said
    assert "start 2 of this run: it goes on from ck" in said
    assert "lost: " in said
    assert said.count("lost its peers") == 1, "one of those that only suffer speaks"
    records = [json.loads(line) for line in (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == list(range(1, STEPS + 1))
    events = [json.loads(line) for line in (tmp_path / "log" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events if event["event"] in ("start", "failure", "finish")][-2:] == [
        "start",
        "finish",
    ]
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == ["latest", "step-00000036", "step-00000040"]
    assert ranks_of(mark) == {}, "a process is left"


def test_a_mistake_is_told_once_however_often_torchrun_starts_again(tmp_path: Path) -> None:
    """torchrun cannot be told that no restart mends it; what it starts again ends at once, and in silence."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    wrong = ["--tensor-model-parallel-size", "3", "--ffn-hidden-size", "48"]
    run = subprocess.run(
        [*launcher, "--max-restarts", "2", *PACKAGE, "train", *FLAGS.split(), *wrong, "--train-iters", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    sentence = "world size = 2 is not a multiple of tensor x pipeline = 3 x 1 = 3; start 3 ranks"
    assert run.returncode == 1
    assert run.stderr.count(f"megatron-tlm: error: {sentence}") == 1, run.stderr
    assert "attempt_2" in run.stderr, "torchrun did start it again"
    assert run.stderr.count(sentence) > 1, "and shows the sentence of its last start"
