"""Network interfaces of this node, and which of them gloo and NCCL take; asked of the kernel, no package needed."""

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from megatron_tlm.errors import CommError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_SYSFS = Path("/sys/class/net")


@dataclass(frozen=True)
class Interface:
    """`address` is its first IPv4 one, None without; `megabits` per second where the driver knows."""

    name: str
    address: str | None
    up: bool
    megabits: int | None = None

    @property
    def loopback(self) -> bool:
        return self.address is not None and ip_address(self.address).is_loopback

    def __str__(self) -> str:
        state = "" if self.up else ", down"
        speed = f", {self.megabits / 1000:g} Gbit/s" if self.megabits else ""
        return f"{self.name} ({self.address or 'no IPv4 address'}{speed}{state})"


def list_interfaces() -> tuple[Interface, ...]:
    """In the kernel's order."""
    return tuple(
        Interface(name, _address(name), _read(name, "operstate") not in ("down", "lowerlayerdown"), _megabits(name))
        for _, name in socket.if_nameindex()
    )


def gloo_address(environment: Mapping[str, str] | None = None) -> str:
    """Where this process's gloo listens, as torch chooses: the named interface, else what the host's name resolves to
    where that is an address of this host, else the loopback. CommError for an interface that is not there."""
    given = os.environ if environment is None else environment
    if names := given.get(GLOO):
        return chosen_interface(names.split(",")[0], list_interfaces()).address or ""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return "127.0.0.1"
    return next((str(entry[4][0]) for entry in found if _is_ours(entry[0], entry[4])), "127.0.0.1")


def chosen_interface(name: str, interfaces: Sequence[Interface]) -> Interface:
    """The one that GLOO_SOCKET_IFNAME names; CommError where it is absent, down or without an address."""
    usable = [item.name for item in interfaces if item.up and item.address and not item.loopback]
    instead = f"give one of {', '.join(usable)}" if usable else "no interface here has an IPv4 address"
    found = next((item for item in interfaces if item.name == name), None)
    if found is None:
        raise CommError(
            f"{GLOO} = {name} is none of the {len(interfaces)} interfaces of {socket.gethostname()}; {instead}"
        )
    if not found.up or found.address is None:
        raise CommError(f"{GLOO} = {found} cannot be used on {socket.gethostname()}; {instead}")
    return found


def nccl_interface(interfaces: Sequence[Interface], environment: Mapping[str, str] | None = None) -> Interface | None:
    """What NCCL's sockets take first: NCCL_SOCKET_IFNAME (prefixes, `=` exact, `^` all but), else InfiniBand, else any
    but docker and the loopback, else those; None where nothing fits."""
    given = (os.environ if environment is None else environment).get(NCCL, "")
    usable = [item for item in interfaces if item.up and item.address]
    if given:
        exact, without = given.lstrip("^").startswith("="), given.startswith("^")
        names = given.lstrip("^=").split(",")
        return next((item for item in usable if _named(item.name, names, exact=exact) != without), None)
    order = sorted(usable, key=lambda item: (not item.name.startswith("ib"), item.name.startswith("docker")))
    return next((item for item in order if not item.loopback), next(iter(order), None))


def network_id() -> str:
    """Equal for processes that share their loopback."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True)
class Listener:
    """Where one rank listens: its node in words, `network_id` and `gloo_address`."""

    node: str
    network: str
    address: str


def check_addresses(listeners: Sequence[Listener]) -> None:
    """CommError where ranks of several networks are to meet and one listens on its own loopback."""
    networks = {item.network for item in listeners}
    alone = [item for item in listeners if ip_address(item.address).is_loopback]
    if len(networks) > 1 and alone:
        raise CommError(
            f"gloo on {alone[0].node} = {alone[0].address} is its loopback, which the {len(networks) - 1} other "
            f"nodes cannot reach; export {GLOO}=<interface> on every node, `megatron-tlm doctor` lists them"
        )


def _named(name: str, names: Sequence[str], *, exact: bool) -> bool:
    return any(name == word if exact else name.startswith(word) for word in names)


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _megabits(name: str) -> int | None:
    text = _read(name, "speed")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _read(name: str, attribute: str) -> str:
    try:
        return (_SYSFS / name / attribute).read_text().strip()
    except OSError:
        return ""


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    """Whether one can listen there."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True
