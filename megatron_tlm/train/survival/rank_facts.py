"""What has to be the same on every rank before ranks may work together, and who differs.

    first     code, versions, backend, configuration, where gloo listens
    second    once the run is prepared: plan, checkpoint to go on from, data, and that the folder to save in is one

Paths may differ from node to node, all but `save`: every rank writes its part into that one folder.
"""

import hashlib
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from megatron_tlm import __version__
from megatron_tlm.comm.interfaces import Listener, check_addresses, gloo_address, network_id
from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, fields_of
from megatron_tlm.errors import TlmError, few
from megatron_tlm.train.engines.build import choose_backend
from megatron_tlm.train.survival.agree import AgreedError

PATHS = ("DIR", "FILE", "PREFIX")  # metavars of fields whose value may be another one on each node
ONE_FOLDER = "checkpoint.save"
SOURCES = (".py", ".yaml")
FIRST = "facts"

Facts = Mapping[str, Any]

_REMEDIES = {
    "code": "install the same megatron_tlm on all of them",
    "version": "make the environments equal",
    "backend": "mend the GPUs or drivers of the one, or give --distributed-backend gloo on all",
    "configuration": "give every node the same flags and the same --config file",
}


def node() -> str:
    """This node, as a person would look for it."""
    host, number = socket.gethostname(), os.environ.get("GROUP_RANK")
    several = number is not None and os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
    return f"{host} (node {number})" if several else host


def rank_facts(config: Config | None) -> Facts:
    """Of this rank; what is compared stands under `same`, in the order in which it is looked at."""
    same: dict[str, Any] = {"code": code_hash(), "version megatron_tlm": __version__}
    same["version python"] = ".".join(platform.python_version_tuple()[:2])
    same |= {f"version {name}": _version(name) for name in ("torch", "deepspeed", "numpy")}
    if config is not None:
        same["backend"] = choose_backend(config)
        same |= {f"configuration {key}": value for key, value in compared_fields(config).items()}
    first_of_node = os.environ.get("LOCAL_RANK", "0") == "0"
    return {
        "node": node(),
        "network": network_id(),
        "address": gloo_address(),
        "same": same,
        "sources": source_hashes() if first_of_node else {},
    }


def check_facts(facts: Sequence[Facts | None]) -> str | None:
    """What differs, in one sentence with the nodes at fault; None where all is well. Runs on rank 0."""
    for rank, item in enumerate(facts):
        if item is not None and "fault" in item:
            return f"rank {rank}: {item['fault']}"
    told = [item for item in facts if item is not None]
    for key in dict.fromkeys(key for item in told for key in item["same"]):
        if len({repr(item["same"].get(key)) for item in told}) > 1:
            return _difference(key, told)
    try:
        check_addresses([Listener(item["node"], item["network"], item["address"]) for item in told])
    except TlmError as error:
        return str(error)
    return None


def told_facts(meeting: Meeting, config: Config | None) -> Facts:
    """`rank_facts`, or why this rank has none: the others shall hear it."""
    try:
        return rank_facts(config)
    except TlmError as error:
        meeting.fail()
        return {"node": node(), "fault": str(error)}


def require_same_facts(meeting: Meeting, config: Config) -> None:
    """AgreedError on every rank where code, versions, backend or configuration of any differ from rank 0's."""
    fault = meeting.decide(FIRST, told_facts(meeting, config), check_facts)
    if fault is not None:
        meeting.dismiss(FIRST)
        raise AgreedError(fault)


@cache
def source_hashes() -> Mapping[str, str]:
    """File of this package -> hash of its contents."""
    found: dict[str, str] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for item in sorted(folder.iterdir(), key=lambda item: item.name):
            if item.is_dir() and item.name != "__pycache__":
                walk(item, f"{prefix}{item.name}/")
            elif item.name.endswith(SOURCES):
                found[prefix + item.name] = hashlib.sha256(item.read_bytes()).hexdigest()[:12]

    walk(files("megatron_tlm"), "")
    return found


def code_hash() -> str:
    """Of every source file of this package."""
    text = "\n".join(f"{name} {digest}" for name, digest in source_hashes().items())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def compared_fields(config: Config) -> dict[str, Any]:
    """Section.key -> value of every field that has to be equal on all ranks."""
    told: dict[str, Any] = {}
    for section, values in as_mapping(config).items():
        for key, value in values.items():
            address = f"{section}.{key}"
            if address == ONE_FOLDER or fields_of(section)[key].metadata["metavar"] not in PATHS:
                told[address] = value
    return told


def _difference(key: str, facts: Sequence[Facts]) -> str:
    kind, _, what = key.partition(" ")
    groups: dict[str, list[str]] = {}
    for item in facts:
        groups.setdefault(_shown(item["same"].get(key)), []).append(item["node"])
    parts = [f"{value} on {_nodes(nodes)}" for value, nodes in groups.items()]
    files_at_fault = f", in {_files(facts)}" if kind == "code" else ""
    if key == f"configuration {ONE_FOLDER}":
        return f"{ONE_FOLDER} = {', '.join(parts)}; every rank writes into that folder, give one that all nodes see"
    return f"{what or kind} = {', '.join(parts)}{files_at_fault}; {_REMEDIES[kind]}"


def _files(facts: Sequence[Facts]) -> str:
    """The first source files that differ."""
    told = [item["sources"] for item in facts if item["sources"]]
    names = sorted({name for sources in told for name in sources})
    different = [name for name in names if len({sources.get(name) for sources in told}) > 1]
    return few(different) if different else "files of one node's own ranks"


def _nodes(nodes: Sequence[str]) -> str:
    return few(list(dict.fromkeys(nodes)))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
