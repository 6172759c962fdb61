"""Where this node talks: interfaces, the one that would be taken, and the rendezvous, before anything waits for it."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megatron_tlm.comm.interfaces import GLOO, NCCL, gloo_address, list_interfaces, nccl_interface
from megatron_tlm.doctor.finding import Finding, failed, passed, refused, warned
from megatron_tlm.errors import CommError, ConfigError

CONNECT_SECONDS = 3.0
LAST_PORT = 65535
RENDEZVOUS = "rendezvous"


@dataclass(frozen=True)
class Endpoint:
    """The meeting point of a launch, as --rdzv-endpoint or MASTER_ADDR and MASTER_PORT say it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
            raise ConfigError(f"--rdzv-endpoint = {text} is no HOST:PORT with a port of 1 to {LAST_PORT}; give one")
        return cls(host.strip("[]"), int(port))


def interfaces(*, several_nodes: bool, gpus: bool) -> Iterator[Finding]:
    """`several_nodes`: a rank that listens on its loopback would never be found; `gpus`: NCCL is going to be used."""
    found = list_interfaces()
    yield passed("interfaces", ", ".join(map(str, found)))
    named = f"{GLOO} = {os.environ[GLOO]}" if os.environ.get(GLOO) else f"by the host's name, {GLOO} is not set"
    others = [item.name for item in found if item.up and item.address and not item.loopback]
    remedy = f"export {GLOO}={others[0]}" if others else "give this node an address"
    try:
        address = gloo_address()
    except CommError as error:
        yield refused("gloo", error)
    else:
        if not address.startswith(("127.", "::1")):
            yield passed("gloo", f"{address}, {named}")
        elif several_nodes:
            yield failed("gloo", f"{address}, {named}: other nodes cannot reach it", remedy)
        else:
            yield passed("gloo", f"{address}, {named}; enough for one node")
    if not gpus:
        return
    chosen = nccl_interface(found)
    if chosen is None:
        yield failed(
            "NCCL", f"no interface for {NCCL} = {os.environ.get(NCCL, '(not set)')}", remedy.replace(GLOO, NCCL)
        )
    elif several_nodes and chosen.loopback:
        yield failed("NCCL", f"{chosen}: other nodes cannot reach it", remedy.replace(GLOO, NCCL))
    else:
        yield passed("NCCL", f"sockets by {chosen}" + (f", {NCCL} is set" if os.environ.get(NCCL) else ""))


def rendezvous(endpoint: Endpoint, *, node_rank: int | None = None, nodes: int = 1, wait_seconds: float = 0) -> Finding:
    """On the node that hosts it: is the port free? On others: can it be reached, for `wait_seconds` if need be?

    `node_rank` as torchrun will be told it: 0 hosts. Without it the node that owns the address does.
    """
    if node_rank is not None and not 0 <= node_rank < nodes:
        return failed(
            RENDEZVOUS,
            f"node rank = {node_rank} is beyond the last of {nodes} nodes",
            f"count nodes from 0 to {nodes - 1}: every node another number",
        )
    try:
        address = _resolve(endpoint)
    except OSError as error:
        return failed(
            RENDEZVOUS,
            f"{endpoint.host} does not resolve here ({error.strerror or error})",
            "give a name or address that every node knows",
        )
    ours = _is_ours(address)
    if node_rank == 0 and not ours:
        return failed(
            RENDEZVOUS,
            f"node rank = 0 hosts {endpoint}, and {address} is no address of {socket.gethostname()}",
            "give this node another rank, or give its own address as the meeting point",
        )
    if ours and (node_rank or 0) == 0:
        return _port(endpoint, address)
    return _reach(endpoint, address, wait_seconds)


def joined() -> Iterator[Finding]:
    """Under torchrun the meeting point is reached already."""
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        yield passed(RENDEZVOUS, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} reached")


def _resolve(endpoint: Endpoint) -> str:
    return str(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0][4][0])


def _is_ours(address: str) -> bool:
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _port(endpoint: Endpoint, address: str) -> Finding:
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # As torch will: on all addresses.
            probe.bind(("::" if ":" in address else "", endpoint.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                return failed(RENDEZVOUS, f"port {endpoint.port} cannot be opened ({reason})", "give a port above 1023")
            owner = port_owner(endpoint.port)
            return failed(
                RENDEZVOUS,
                f"port {endpoint.port} of this node is taken{f' by {owner}' if owner else ''}",
                "give another port, or end that process if it is left over from a former run",
            )
    return passed(RENDEZVOUS, f"{endpoint} is this node, the port is free")


def _reach(endpoint: Endpoint, address: str, wait_seconds: float) -> Finding:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            with socket.create_connection((address, endpoint.port), timeout=CONNECT_SECONDS):
                return passed(RENDEZVOUS, f"{endpoint} ({address}) answers")
        except OSError as error:
            fault = error
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(1.0, left))
    if isinstance(fault, ConnectionRefusedError):
        text, remedy = (
            f"{endpoint.host} ({address}) is reached, nothing listens at port {endpoint.port} yet",
            ("start the node that hosts the meeting point, or check its port"),
        )
        # Without waiting it is what one sees before the launch.
        return failed(RENDEZVOUS, text, remedy) if wait_seconds else warned(RENDEZVOUS, text, remedy)
    reason = getattr(fault, "strerror", None) or str(fault)
    return failed(
        RENDEZVOUS,
        f"{endpoint} ({address}) cannot be reached ({reason})",
        "check the address, that its interface is up, and that no firewall keeps the port",
    )


def port_owner(port: int) -> str | None:
    """The process that listens there, where one may see it."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if any(os.readlink(link) in inodes for link in (folder / "fd").iterdir()):
                # Its name alone: what stands behind it on the command line may be a secret.
                return f"process {folder.name} ({(folder / 'comm').read_text().strip()})"
        except OSError:
            continue
    return None


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
