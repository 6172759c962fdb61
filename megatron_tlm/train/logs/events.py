"""What happens to a run beside its steps, one line each in log_dir/events.jsonl.

A line has `event` (its kind), `step` (finished steps by then), `time` (seconds since 1970) and the kind's own facts:

    start       layout, ranks, hosts, versions, device, plan, lengths: `start_facts`; one for every time it is started
    resume      source, steps_again, seconds_again, seconds_down: what was lost since the last metrics were written
    checkpoint  path, seconds, stall_seconds (training stood still), bytes
    bad_step    cause, action, loss, grad_norm, samples, and the first unit or parameter at fault where it was found
    rollback    cause, to_step
    straggler   ranks that were slower than the others, with their hosts
    stop        cause: a signal, an interval, ...; finish: all steps are taken
    failure     error: the sentence that the rank that writes the logs ended with

A run that goes back takes back metrics, never events: they are its history.
"""

import platform
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, Protocol

import torch

from megatron_tlm import __version__
from megatron_tlm.comm.torchrun import restart_count
from megatron_tlm.plan.build import Plan

EVENTS_NAME = "events.jsonl"

EventKind = Literal["start", "resume", "checkpoint", "bad_step", "rollback", "straggler", "stop", "finish", "failure"]


class Tell(Protocol):
    """Takes an event down; `RunLog.event` is one."""

    def __call__(self, kind: EventKind, step: int, **facts: Any) -> None: ...


def tell_nobody(kind: EventKind, step: int, **facts: Any) -> None:
    return


def start_facts(plan: Plan, *, train_steps: int, samples_per_step: int, hosts: Sequence[str]) -> dict[str, Any]:
    """What a run is and where it runs; `hosts` has the name of every rank's."""
    grid, shape = plan.grid, plan.shape
    return {
        "ranks": grid.size,
        "hosts": len(set(hosts)),
        "host": socket.gethostname(),
        "layout": {"tensor": grid.tensor, "pipe": grid.pipe, "data": grid.data},
        "restarts": restart_count(),
        "versions": versions(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "train_steps": train_steps,
        "samples_per_step": samples_per_step,
        "tokens_per_step": samples_per_step * plan.seq_length,
        "model": {
            "mixer": shape.mixer,
            "layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "heads": shape.num_attention_heads,
            "vocab_size": shape.vocab_size,
            "seq_length": plan.seq_length,
        },
        "plan": plan.to_json(),
    }


def versions() -> dict[str, str]:
    """Of what decides a run's numbers."""
    told = {"megatron_tlm": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("deepspeed", "numpy"):
        try:
            told[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        told["cuda"] = torch.version.cuda
    return told | {"platform": f"{sys.platform} {platform.release()}"}
