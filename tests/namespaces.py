"""Several machines on one: network namespaces joined by a bridge, made and removed by the test, as root.

    [node 0]eth0 10.77.0.1 --- br0 --- 10.77.0.2 eth0[node 1]     the bridge stands in a namespace of its own,
                                |                                 so that nothing of this machine's network is touched
                               ...

A node has its own interfaces, routes, loopback and host name; files are shared, unless a folder is bound elsewhere.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

INTERFACE = "eth0"
_CLONE_NEWUTS, _CLONE_NEWNET, _CLONE_NEWNS = 0x04000000, 0x40000000, 0x00020000
_MS_REC, _MS_PRIVATE, _MS_BIND = 16384, 1 << 18, 4096


@dataclass(frozen=True)
class Node:
    """One machine of a network."""

    number: int
    namespace: str

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number + 1}"

    def command(self, words: Sequence[str], binds: Mapping[Path, Path] | None = None) -> list[str]:
        """The words that run `words` there; `binds` are folders (of the test) that another one stands for."""
        mounts = "".join(f"mount --bind '{source}' '{target}' && " for target, source in (binds or {}).items())
        script = f'{mounts}hostname "$0" && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--", "sh", "-c", script, self.name, *words]

    def enter(self, binds: Mapping[Path, Path] | None = None) -> None:
        """Move this process there, for good: for a forked rank."""
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        steps = [lambda: libc.setns(handle, _CLONE_NEWNET), lambda: libc.unshare(_CLONE_NEWUTS | _CLONE_NEWNS)]
        steps += [lambda: libc.sethostname(self.name.encode(), len(self.name))]
        steps += [lambda: libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)]
        for target, source in (binds or {}).items():
            steps.append(lambda a=str(source), b=str(target): libc.mount(a.encode(), b.encode(), None, _MS_BIND, None))
        for step in steps:
            if step():
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(handle)

    def link(self, state: str) -> None:
        """`down` is a cable that is pulled: nothing is closed, nothing answers."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, state)


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Node]]:
    """Nodes that reach each other; the test is skipped, with the reason, where this process may not make them."""
    if os.geteuid() or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need root, `ip` of iproute2 and `unshare` of util-linux")
    prefix = f"tlm-{os.getpid()}"
    switch, nodes = f"{prefix}-switch", [Node(number, f"{prefix}-{number}") for number in range(count)]
    try:
        try:
            for namespace in (switch, *(node.namespace for node in nodes)):
                _ip("netns", "add", namespace)
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        _ip("-n", switch, "link", "set", "br0", "up")
        for node in nodes:
            port = f"v{node.number}"
            peer = ("peer", "name", INTERFACE, "netns", node.namespace)
            _ip("-n", switch, "link", "add", port, "type", "veth", *peer)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", INTERFACE)
            _ip("-n", node.namespace, "link", "set", INTERFACE, "up")
            _ip("-n", node.namespace, "link", "set", "lo", "up")
        yield nodes
    finally:
        for namespace in (*(node.namespace for node in nodes), switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
