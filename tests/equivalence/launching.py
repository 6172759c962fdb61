"""Whole runs of `train(config)` on forked ranks, as torchrun would start them: exit codes, words, what is left.

Forked for the same reason as in tests.ranks, but without its process group: `train` makes its own and may end its
process, which is what these tests look at.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig, LoggingConfig
from megatron_tlm.errors import TlmError
from megatron_tlm.train.train import train
from tests.equivalence.training import VOCAB, tiny

TEN_STEPS = 10


@dataclass(frozen=True)
class Launch:
    """How each rank ended (negative: by that signal), and what each wrote."""

    codes: list[int]
    out: list[str]
    err: list[str]

    @property
    def said(self) -> str:
        return "".join(self.out)

    @property
    def complained(self) -> str:
        return "".join(self.err)


def run_config(folder: Path, *, save: str | None = "ck", **changes: Any) -> Config:
    """Ten steps of the tiny model on made-up data, saved at the end in `folder`/ck, logged in `folder`/log."""
    checkpoint = {name: changes.pop(name) for name in list(changes) if hasattr(CheckpointConfig, name)}
    config = tiny(**{"train_iters": TEN_STEPS, "eval_interval": 5, "eval_iters": 1, **changes})
    return replace(
        config,
        model=replace(config.model, vocab_size=VOCAB),
        optimizer=replace(config.optimizer, lr_decay_style="cosine", lr=1e-2, lr_warmup_iters=3),
        data=DataConfig(mock_data=True),
        checkpoint=CheckpointConfig(save=str(folder / save) if save else None, **checkpoint),
        logging=LoggingConfig(log_interval=2, log_dir=str(folder / "log")),
    )


def launch(
    config: Config,
    ranks: int,
    *,
    before: Callable[[int], None] = lambda rank: None,
    meanwhile: Callable[[list[int]], None] = lambda pids: None,
    timeout_seconds: float = 90.0,
) -> Launch:
    """Runs `before(rank)`, then `train(config)` on every rank; `meanwhile(pids)` in the parent. Laggards are killed."""
    folder = Path(config.logging.log_dir or ".").parent
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.stdout.flush()
    sys.stderr.flush()
    pids = [_fork(config, rank, ranks, port, folder, before) for rank in range(ranks)]
    meanwhile(pids)
    codes = _wait(pids, timeout_seconds)
    texts = [[(folder / f"{kind}-{rank}").read_text() for rank in range(ranks)] for kind in ("out", "err")]
    return Launch(codes, *texts)


def _fork(config: Config, rank: int, ranks: int, port: int, folder: Path, before: Callable[[int], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{kind}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        before(rank)
        code = train(config)
    except TlmError as error:
        print(error, file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pids: list[int], timeout_seconds: float) -> list[int]:
    deadline = time.monotonic() + timeout_seconds
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def metrics_of(config: Config) -> list[dict[str, Any]]:
    """The objects of the run's metrics.jsonl, clock left out."""
    text = (Path(config.logging.log_dir or "") / "metrics.jsonl").read_text()
    timed = ("seconds", "data_wait_seconds", "tokens_per_second", "tflops_per_device")
    watched = ("forward-compute-", "data-wait-", "straggler-", "mem-", "stage-", "pipeline-")
    return [
        {key: value for key, value in json.loads(line).items() if key not in timed and not key.startswith(watched)}
        for line in text.splitlines()
    ]


def events_of(config: Config) -> list[dict[str, Any]]:
    """The objects of the run's events.jsonl."""
    text = (Path(config.logging.log_dir or "") / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def losses_of(config: Config) -> list[float]:
    return [record["loss"] for record in metrics_of(config) if "loss" in record]


def tensors_of(config: Config) -> dict[tuple[str, str], Tensor]:
    """Every tensor of the newest checkpoint, whole."""
    assert config.checkpoint.save is not None
    with Reader(find(Path(config.checkpoint.save))) as reader:
        return {(name, role): reader.read(name, role) for name, role in reader.manifest.tensors}


def assert_equal_bits(found: dict[tuple[str, str], Tensor], wanted: dict[tuple[str, str], Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), f"{key} differs"
