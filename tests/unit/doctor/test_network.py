"""The rendezvous as it would go wrong: a port that is taken, hosts that are not there, node numbers that cannot be."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from megatron_tlm.doctor import network
from megatron_tlm.doctor.network import Endpoint, interfaces, port_owner, rendezvous
from megatron_tlm.errors import ConfigError


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("text", ["node0", "node0:", ":1", "node0:0", "node0:70000", "node0:x"])
def test_an_endpoint_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--rdzv-endpoint = {text} is no HOST:PORT with a port of 1 to 65535"):
        Endpoint.parse(text)


def test_an_endpoint_is_read() -> None:
    assert Endpoint.parse("[::1]:29500") == Endpoint("::1", 29500)


def test_the_port_is_free_where_it_will_be_opened() -> None:
    told = rendezvous(Endpoint("127.0.0.1", free_port()), node_rank=0, nodes=2)
    assert told.status == "pass"
    assert told.text.endswith("is this node, the port is free")


def test_a_taken_port_is_told_with_its_owner(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    told = rendezvous(Endpoint("127.0.0.1", port))
    assert told.status == "fail"
    assert told.text.startswith(f"port {port} of this node is taken by process ")
    assert told.remedy == "give another port, or end that process if it is left over from a former run"
    assert port_owner(free_port()) is None


def test_a_master_that_listens_is_reached(listening: socket.socket) -> None:
    told = rendezvous(Endpoint("127.0.0.1", listening.getsockname()[1]), node_rank=1, nodes=2)
    assert told.status == "pass"
    assert told.text.endswith("answers")


def test_a_master_that_does_not_listen_yet_is_a_warning_until_one_has_waited() -> None:
    endpoint = Endpoint("127.0.0.1", free_port())
    told = rendezvous(endpoint, node_rank=1, nodes=2)
    assert (told.status, told.text) == (
        "warn",
        f"127.0.0.1 (127.0.0.1) is reached, nothing listens at port {endpoint.port} yet",
    )
    assert rendezvous(endpoint, node_rank=1, nodes=2, wait_seconds=0.2).status == "fail"


def test_a_master_that_starts_later_is_waited_for() -> None:
    endpoint = Endpoint("127.0.0.1", free_port())
    with socket.socket() as server:

        def start() -> None:
            time.sleep(0.5)
            server.bind((endpoint.host, endpoint.port))
            server.listen()

        thread = threading.Thread(target=start)
        thread.start()
        assert rendezvous(endpoint, node_rank=1, nodes=2, wait_seconds=20).status == "pass"
        thread.join()


def test_a_name_that_nobody_knows_is_told() -> None:
    told = rendezvous(Endpoint("no-such-host.invalid", 29500))
    assert told.status == "fail"
    assert told.text.startswith("no-such-host.invalid does not resolve here")


def test_an_address_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(network.socket, "create_connection", unreachable)
    told = rendezvous(Endpoint("192.0.2.77", 29500))
    assert (told.status, told.text) == ("fail", "192.0.2.77:29500 (192.0.2.77) cannot be reached (No route to host)")
    assert "firewall" in told.remedy


def test_node_0_has_to_own_the_address() -> None:
    told = rendezvous(Endpoint("192.0.2.77", 29500), node_rank=0, nodes=2)
    assert told.status == "fail"
    assert "node rank = 0 hosts 192.0.2.77:29500, and 192.0.2.77 is no address of" in told.text


@pytest.mark.parametrize("rank", [2, -1])
def test_nodes_are_counted_from_0(rank: int) -> None:
    told = rendezvous(Endpoint("127.0.0.1", 29500), node_rank=rank, nodes=2)
    assert told.text == f"node rank = {rank} is beyond the last of 2 nodes"
    assert told.remedy == "count nodes from 0 to 1: every node another number"


def test_a_loopback_is_enough_for_one_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    alone = {item.check: item.status for item in interfaces(several_nodes=False, gpus=False)}
    assert alone == {"interfaces": "pass", "gloo": "pass"}
    several = {item.check: item for item in interfaces(several_nodes=True, gpus=True)}
    assert several["gloo"].status == "fail"
    assert "other nodes cannot reach it" in several["gloo"].text


def test_an_interface_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth77")
    found = {item.check: item for item in interfaces(several_nodes=True, gpus=True)}
    assert found["gloo"].status == found["NCCL"].status == "fail"
    assert found["gloo"].text.startswith("GLOO_SOCKET_IFNAME = eth77 is none of the ")
    assert found["NCCL"].text == "no interface for NCCL_SOCKET_IFNAME = =eth77"
