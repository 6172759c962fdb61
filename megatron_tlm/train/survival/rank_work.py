"""What ranks are about to do, compared before they are connected: plan, checkpoint, data, and the folder to save in."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from megatron_tlm.checkpoint.manifest import MANIFEST_NAME
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.schema import Config
from megatron_tlm.data.fingerprint import Fingerprint
from megatron_tlm.errors import few
from megatron_tlm.train.prepare import Prepared
from megatron_tlm.train.survival.agree import AgreedError
from megatron_tlm.train.survival.rank_facts import node

WORK, FOLDER = "work", "folder"
# A network file system may take a moment to show another node's new file.
SEEN_SECONDS = 5.0

Work = Mapping[str, Any]


def rank_work(config: Config, prepared: Prepared, fingerprint: Fingerprint) -> Work:
    """Of this rank."""
    plan = prepared.plan
    decided = [list(plan.shape.widths), [[stage.start, stage.stop] for stage in plan.stages], plan.micro_batches]
    deepspeed = config.parallel.deepspeed_config
    return {
        "node": node(),
        "widths and stages": _hash(json.dumps(decided).encode()),
        "parallel.deepspeed_config": None if deepspeed is None else _hash(Path(deepspeed).read_bytes()),
        "checkpoint to go on from": None if prepared.source is None else _checkpoint(prepared.source),
        "data": dict(fingerprint.values),
    }


def check_work(told: Sequence[Work | None], paths: Sequence[str]) -> str | None:
    """What differs from rank 0's, in one sentence with the nodes; None where all is well. `paths`: rank 0's corpora."""
    first = told[0]
    if first is None:
        return None
    for other in told[1:]:
        if other is None:
            continue
        for key in first:
            if key not in ("node", "data") and first[key] != other[key]:
                remedy = _REMEDIES.get(key, "give every node the same files")
                return f"{key} = {first[key]} on {first['node']}, {other[key]} on {other['node']}; {remedy}"
        for name, value in first["data"].items():
            if value != (theirs := other["data"].get(name)):
                if name.startswith("data.corpus_"):
                    path = paths[int(name.removeprefix("data.corpus_"))]
                    value, theirs, name = value[:8], str(theirs)[:8], f"data = tokens of {path}"
                    return (
                        f"{name} with fingerprint {value} on {first['node']}, {theirs} on {other['node']}; copy the "
                        ".bin/.idx pair anew, `megatron-tlm data verify` prints the hash of one"
                    )
                return (
                    f"{name} = {value} on {first['node']}, {theirs} on {other['node']}; give every node the same files"
                )
    return None


_REMEDIES = {
    "checkpoint to go on from": "let all nodes see the same --load folder, or give a --ckpt-step that all have",
}


def require_same_work(meeting: Meeting, config: Config, prepared: Prepared, fingerprint: Fingerprint) -> None:
    """AgreedError on every rank where any is about to do something else than rank 0, or to save somewhere else."""
    fault = meeting.decide(
        WORK, rank_work(config, prepared, fingerprint), lambda told: check_work(told, fingerprint.paths)
    )
    topic = WORK
    if fault is None and config.checkpoint.save is not None and meeting.world_size > 1:
        fault, topic = unshared(meeting, Path(config.checkpoint.save), "checkpoint.save"), FOLDER
    if fault is not None:
        meeting.dismiss(topic)
        raise AgreedError(fault)


def unshared(meeting: Meeting, folder: Path, address: str) -> str | None:
    """Why the ranks do not see one and the same folder, None where they do; rank 0 leaves a word for the others."""
    name = f".seen-{token_hex(8)}" if meeting.rank == 0 else None
    if name is not None:
        (folder / name).write_text(name)
    try:
        name = meeting.decide(f"{FOLDER} name", name, lambda told: told[0])
        seen = {"node": node(), "seen": _sees(folder / str(name))}
        return meeting.decide(FOLDER, seen, lambda told: _blind(told, folder, address))  # type: ignore[no-any-return]
    finally:
        if meeting.rank == 0:
            with suppress(OSError):
                (folder / str(name)).unlink()


def _blind(told: Sequence[Mapping[str, Any] | None], folder: Path, address: str) -> str | None:
    nodes = list(dict.fromkeys(item["node"] for item in told if item is not None and not item["seen"]))
    if not nodes or told[0] is None:
        return None
    return (
        f"{address} = {folder} on {told[0]['node']} is another folder on {few(nodes)}; "
        "give a folder on a file system that all nodes share"
    )


def _sees(path: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _checkpoint(source: Path) -> str:
    """The same for copies of one checkpoint, wherever they lie."""
    return f"{source.name} {_hash((source / MANIFEST_NAME).read_bytes())}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
