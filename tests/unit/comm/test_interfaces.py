"""Which interface gloo and NCCL take."""

import socket

import pytest

from megatron_tlm.comm import interfaces
from megatron_tlm.comm.interfaces import (
    Interface,
    Listener,
    check_addresses,
    chosen_interface,
    gloo_address,
    list_interfaces,
    nccl_interface,
    network_id,
)
from megatron_tlm.errors import CommError

LO, ETH = Interface("lo", "127.0.0.1", True), Interface("eth0", "10.0.0.1", True, 10_000)
DOCKER, IB = Interface("docker0", "172.17.0.1", True), Interface("ib0", "10.1.0.1", True)
DOWN, BARE = Interface("eth1", "10.2.0.1", False), Interface("eth2", None, True)


def test_this_machine_has_a_loopback() -> None:
    lo = next(item for item in list_interfaces() if item.name == "lo")
    assert lo.loopback
    assert lo.up
    assert lo.address == "127.0.0.1"
    assert str(ETH) == "eth0 (10.0.0.1, 10 Gbit/s)"
    assert str(BARE) == "eth2 (no IPv4 address)"


def test_gloo_takes_the_named_interface_else_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gloo_address({"GLOO_SOCKET_IFNAME": "lo"}) == "127.0.0.1"

    def resolve(address: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]
        monkeypatch.setattr(interfaces.socket, "getaddrinfo", lambda *_, **__: found)

    resolve("127.0.0.5")
    assert gloo_address({}) == "127.0.0.5"
    # A name that stands for another machine's address: torch falls back to the loopback.
    resolve("192.0.2.77")
    assert gloo_address({}) == "127.0.0.1"

    def unknown(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(interfaces.socket, "getaddrinfo", unknown)
    assert gloo_address({}) == "127.0.0.1"


def test_an_interface_that_cannot_be_used_is_told_with_those_that_can() -> None:
    assert chosen_interface("eth0", [LO, ETH]) == ETH
    with pytest.raises(CommError, match=r"GLOO_SOCKET_IFNAME = eth9 is none of the 2 interfaces of .*; give one of e"):
        chosen_interface("eth9", [LO, ETH])
    with pytest.raises(CommError, match=r"GLOO_SOCKET_IFNAME = eth1 \(10.2.0.1, down\) cannot be used .*one of eth0"):
        chosen_interface("eth1", [LO, ETH, DOWN])
    with pytest.raises(CommError, match=r"eth2 .no IPv4 address. cannot be used on .*; no interface here has an IPv4"):
        chosen_interface("eth2", [LO, BARE])


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("", IB),
        ("eth", ETH),
        ("=eth", None),
        ("=eth0", ETH),
        ("^ib,docker", LO),
        ("^ib,docker,lo", ETH),
        ("eth1", None),
    ],
)
def test_nccl_takes_prefixes_exact_names_and_all_but(given: str, taken: Interface | None) -> None:
    assert nccl_interface([LO, DOCKER, ETH, IB, DOWN], {"NCCL_SOCKET_IFNAME": given}) == taken


def test_nccl_takes_docker_and_loopback_last() -> None:
    assert nccl_interface([LO, DOCKER, ETH], {}) == ETH
    assert nccl_interface([LO, DOCKER], {}) == DOCKER
    assert nccl_interface([LO], {}) == LO
    assert nccl_interface([], {}) is None


def test_a_loopback_among_several_networks_is_refused() -> None:
    here, there = Listener("a", "n1", "127.0.0.1"), Listener("b", "n2", "10.0.0.2")
    check_addresses([here, here])
    check_addresses([there, Listener("a", "n1", "10.0.0.1")])
    with pytest.raises(CommError, match=r"gloo on a = 127.0.0.1 is its loopback, which the 1 other nodes cannot reach"):
        check_addresses([there, here])


def test_processes_of_one_machine_share_a_network() -> None:
    assert network_id() == network_id()
