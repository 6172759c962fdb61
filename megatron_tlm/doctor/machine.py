"""What this node is made of: software, devices, limits, shared memory."""

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement

from megatron_tlm import __version__
from megatron_tlm.doctor.finding import Finding, failed, passed, warned
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.train.engines.optimizer import apex_fused_adam
from megatron_tlm.train.survival.rank_facts import code_hash, source_hashes

REQUIRED = ("torch", "deepspeed", "numpy", "safetensors", "pyyaml")
SHARED_MEMORY = Path("/dev/shm")
# NCCL puts a few MB a peer there, workers of a data loader more; containers often have 64 MiB.
ENOUGH_SHARED_BYTES = 1 << 30
ENOUGH_FILES = 4096
INFINIBAND = Path("/sys/class/infiniband")


def machine_findings() -> list[Finding]:
    return [*software(), *devices(), shared_memory(), *limits()]


def software() -> Iterator[Finding]:
    yield passed("megatron_tlm", f"{__version__}, code {code_hash()} in {len(source_hashes())} files")
    yield passed("python", platform.python_version())
    wanted = {item.name.lower(): item for item in map(Requirement, _requirements())}
    for name in REQUIRED:
        yield requirement(name, wanted.get(name))
    apex = apex_fused_adam() is not None
    yield passed("apex", "NVIDIA's, with fused AdamW" if apex else "absent, torch's fused AdamW serves")


def requirement(name: str, wanted: Requirement | None) -> Finding:
    """Whether what is installed is what this package was made for."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return failed(name, "absent", f"pip install '{wanted or name}'")
    if wanted is not None and not wanted.specifier.contains(version.split("+")[0], prereleases=True):
        return failed(name, f"{version} is outside {wanted.specifier}", f"pip install '{wanted}'")
    return passed(name, version)


def devices() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield passed("host", f"{cores} cores, {gibibytes(memory)} of memory")
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        yield passed("devices", f"no GPU ({built}): ranks train on the CPU with gloo")
        return
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
    smallest = min(torch.cuda.get_device_properties(index).total_memory for index in range(count))
    text = f"{count} x {', '.join(names)}, {gibibytes(smallest)} each"
    if ranks > count:
        yield failed("devices", f"{text}, for {ranks} ranks", f"start with --nproc-per-node {count}")
    else:
        yield passed("devices", text)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    yield passed("CUDA", f"{torch.version.cuda}, NCCL {nccl}")
    flash = torch.backends.cuda.is_flash_attention_available()
    yield (
        passed("flash attention", "torch's own")
        if flash
        else warned("flash attention", "absent", "attention will be slow; install a torch that is built with it")
    )


def available_memory() -> int:
    """Bytes that new processes of this node may take, by the kernel and by the container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        found.append(limit - int((group / "memory.current").read_text()))
    return min(found)


def shared_memory(place: Path = SHARED_MEMORY, enough: int = ENOUGH_SHARED_BYTES) -> Finding:
    if not place.is_dir():
        return warned(str(place), "absent", "mount a tmpfs there; NCCL's ranks of one node meet in it")
    free = shutil.disk_usage(place).free
    if free < enough:
        remedy = "start the container with --shm-size=8g or --ipc=host; NCCL's ranks of one node meet there"
        return warned(str(place), f"{gibibytes(free)} free, below {gibibytes(enough)}", remedy)
    return passed(str(place), f"{gibibytes(free)} free")


def limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < ENOUGH_FILES:
        yield warned("open files", f"{files} allowed, below {ENOUGH_FILES}", "raise them: ulimit -n 65536")
    else:
        yield passed("open files", "no limit" if files == resource.RLIM_INFINITY else f"{files} allowed")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if INFINIBAND.is_dir() and any(INFINIBAND.iterdir()) and locked != resource.RLIM_INFINITY:
        yield warned(
            "locked memory", f"{gibibytes(locked)} allowed, InfiniBand pins more", "raise it: ulimit -l unlimited"
        )


def _requirements() -> list[str]:
    try:
        return [text for text in metadata.requires("megatron_tlm") or [] if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        return []  # run from a clone that is on the path and not installed
