"""`megatron-tlm doctor` on one node."""

import json
import socket
from pathlib import Path

import pytest

from megatron_tlm.cli.doctor import main
from megatron_tlm.errors import ConfigError

CONFIG = """\
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16, vocab_size: 64}
parallel: {tensor_model_parallel_size: 2}
training: {train_iters: 2, eval_iters: 0}
data: {mock_data: true}
"""


def test_a_machine_is_looked_at_without_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith("pass  megatron_tlm")
    assert said.splitlines()[-1].startswith("ready")
    assert "configuration" not in said


def test_a_run_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    words = ["--config", str(tmp_path / "run.yaml"), "--save", str(tmp_path / "ck")]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ready"] is True
    assert {"configuration", "memory", "data", "checkpoint.save", "room for checkpoints"} <= {
        item["check"] for item in told["findings"]
    }
    # Two ranks, the tensor degree, unless the number is given.
    assert main([*words, "--world-size", "3"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not ready: configuration: world size = 3 is not a multiple of tensor x pipeline = 2")


def test_a_configuration_that_cannot_be_read_hides_nothing_of_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("training: {seed: -1}\n")
    assert main(["--config", str(tmp_path / "run.yaml"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    found = {item["check"]: item["status"] for item in told["findings"]}
    assert {found[name] for name in ("python", "host", "interfaces")} == {"pass"}
    assert {found[name] for name in ("memory", "data", "folders")} == {"skip"}
    assert told["verdict"].startswith("not ready: configuration: ")


def test_a_taken_port_is_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert main(["--rdzv-endpoint", f"127.0.0.1:{port}"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"not ready: rendezvous: port {port} of this node is taken by process ")
    assert "; give another port, or end that process" in last


def test_a_wrong_node_rank_is_the_verdict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    words = ["--rdzv-endpoint", "192.0.2.77:29500", "--nnodes", "1", "--node-rank", "0"]
    assert main(words) == 1
    assert "not ready: rendezvous: node rank = 0 hosts 192.0.2.77:29500" in capsys.readouterr().out


def test_a_node_rank_without_a_meeting_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="--node-rank and --wait say nothing without a meeting point; give --rdzv-"):
        main(["--node-rank", "1"])


def test_a_run_of_no_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="--world-size = 0 is below 1; give 1 or more"):
        main(["--preset", "tiny", "--mock-data", "--world-size", "0"])
