"""The launch scripts on a PATH where torchrun, ssh, srun and doctor write down what they were called with."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT

LAUNCH = ROOT / "examples" / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir())

# A stub: its words, one a line, and the variables that the scripts set for it, in a file for each call.
STUB = """#!/usr/bin/env bash
{{ printf '%s\\n' "$@"; env | grep -E '^(GLOO|NCCL|TORCH_DISABLE|RANK|WORLD_SIZE)' | sort; }} > "{log}/{name}.$$"
{body}
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """The folder of the logs; its `bin` is to be first on the PATH."""
    (tmp_path / "bin").mkdir()
    bodies = {
        "torchrun": 'exit "${TORCHRUN_CODE:-0}"',
        "megatron-tlm": 'exit "${DOCTOR_CODE:-0}"',
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": "printf 'node7\\nnode8\\n'",
        "nvidia-smi": 'for i in $(seq "${STUB_GPUS:-8}"); do echo "GPU $i"; done',
        # What sshd does: hand the words to a shell.
        "ssh": 'host=${@: -2:1}; [[ $host != "${BROKEN_HOST:-}" ]] || exit 255; exec bash -c "${@: -1}"',
    }
    for name, body in bodies.items():
        path = tmp_path / "bin" / name
        path.write_text(STUB.format(log=tmp_path, name=name, body=body))
        path.chmod(0o755)
    return tmp_path


def run(stubs: Path, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = f"{stubs / 'bin'}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GLOO", "NCCL", "TORCH"))}
    return subprocess.run(
        ["bash", str(LAUNCH / script), *words],
        env={**clean, "PATH": paths, **environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls(stubs: Path, name: str) -> list[list[str]]:
    """The lines of each call of a program, in any order: several may be called at a time."""
    return [path.read_text().splitlines() for path in stubs.glob(f"{name}.*")]


def has(call: list[str], *words: str) -> bool:
    """Whether the words stand in the call, side by side."""
    return any(call[start : start + len(words)] == list(words) for start in range(len(call)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_passes_shellcheck(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_one_node_counts_its_gpus(stubs: Path) -> None:
    assert run(stubs, "one_node.sh", "--config", "a b.yaml", RESTARTS="2").returncode == 0
    (call,) = calls(stubs, "torchrun")
    assert call[:5] == ["--standalone", "--nproc-per-node", "8", "--max-restarts", "2"]
    assert call[5:10] == ["-m", "megatron_tlm", "train", "--config", "a b.yaml"]
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in call


@pytest.mark.parametrize("script", ["one_node.sh", "several_nodes.sh", "environment.sh"])
def test_a_machine_without_gpus_is_told_what_to_set(script: str, stubs: Path) -> None:
    rest = {"NODES": "2", "MASTER": "h:1", "NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "h"}
    done = run(stubs, script, STUB_GPUS="0", **rest)
    assert done.returncode == 2
    assert "= 0 processes cannot train; no GPU was found here, set " in done.stderr
    assert not calls(stubs, "torchrun")


def test_several_nodes_ask_the_doctor_first(stubs: Path) -> None:
    given = {"NODES": "4", "MASTER": "node0:29500", "IFNAME": "ib0", "ADDRESS": "10.0.0.7"}
    assert run(stubs, "several_nodes.sh", "--config", "run.yaml", **given).returncode == 0
    (asked,), (call,) = calls(stubs, "megatron-tlm"), calls(stubs, "torchrun")
    assert asked[:7] == ["doctor", "--nnodes", "4", "--rdzv-endpoint", "node0:29500", "--wait", "300"]
    assert has(call, "--nnodes", "4")
    assert has(call, "--nproc-per-node", "8")
    assert has(call, "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500", "--rdzv-id", "megatron_tlm")
    assert has(call, "--rdzv-conf", "join_timeout=300,read_timeout=60", "--local-addr", "10.0.0.7")
    assert has(call, "-m", "megatron_tlm", "train", "--config", "run.yaml")
    assert {"GLOO_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=ib0"} <= set(call)


def test_what_the_doctor_refuses_is_not_started(stubs: Path) -> None:
    assert run(stubs, "several_nodes.sh", NODES="4", MASTER="node0:29500", DOCTOR_CODE="1").returncode == 1
    given = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    assert run(stubs, "environment.sh", **given, DOCTOR_CODE="1").returncode == 1
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
    assert run(stubs, "slurm.sbatch", **slurm, DOCTOR_CODE="1").returncode == 1
    assert not calls(stubs, "torchrun")


@pytest.mark.parametrize("rank", ["NODE_RANK", "JOB_COMPLETION_INDEX", "RANK"])
def test_a_pod_reads_its_place_from_the_environment(rank: str, stubs: Path) -> None:
    given = {"NNODES": "3", "MASTER_ADDR": "run-0.run", "MASTER_PORT": "1234", "POD_IP": "10.1.1.1", rank: "2"}
    assert run(stubs, "environment.sh", "--config", "run.yaml", **given).returncode == 0
    (asked,), (call,) = calls(stubs, "megatron-tlm"), calls(stubs, "torchrun")
    assert has(asked, "--nnodes", "3", "--node-rank", "2", "--rdzv-endpoint", "run-0.run:1234", "--wait", "600")
    assert has(call, "--rdzv-endpoint", "run-0.run:1234")
    assert has(call, "--rdzv-conf", "is_host=0,join_timeout=600,read_timeout=60", "--local-addr", "10.1.1.1")
    # What described the node would pass for the rank.
    assert not [line for line in call if line.startswith(("RANK=", "WORLD_SIZE="))]


def test_node_0_of_the_pods_hosts_the_meeting_point(stubs: Path) -> None:
    given = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "POD_IP": "10.1.1.1", "COMMAND": "doctor"}
    assert run(stubs, "environment.sh", **given).returncode == 0
    (call,) = calls(stubs, "torchrun")
    assert has(call, "--nnodes", "2")
    assert has(call, "--rdzv-conf", "is_host=1,join_timeout=600,read_timeout=60")
    assert has(call, "-m", "megatron_tlm", "doctor")


@pytest.mark.parametrize("absent", ["NNODES", "NODE_RANK", "MASTER_ADDR"])
def test_a_variable_that_is_not_set_is_named(absent: str, stubs: Path) -> None:
    given = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "node0"}
    del given[absent]
    done = run(stubs, "environment.sh", **given)
    assert done.returncode != 0
    assert f"{absent} is not set; give " in done.stderr


def test_slurm_meets_at_its_first_node_on_a_port_of_the_job(stubs: Path) -> None:
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "40123", "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_GPUS_ON_NODE": "4", "SLURM_RESTART_COUNT": "3"}
    assert run(stubs, "slurm.sbatch", "--config", "run.yaml", **slurm, RESTARTS="1").returncode == 0
    (call,) = calls(stubs, "torchrun")
    assert has(call, "--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", "1")
    # A requeued job finds nothing of the time before.
    assert has(call, "--rdzv-endpoint", "node7:20123", "--rdzv-id", "40123-3")
    assert all("--kill-on-bad-exit=1" in call for call in calls(stubs, "srun"))


def test_a_job_is_queued_again_and_warned_before_its_end() -> None:
    asked = [line for line in (LAUNCH / "slurm.sbatch").read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --requeue", "#SBATCH --signal=TERM@120", "#SBATCH --ntasks-per-node=1"} <= set(asked)


def hosts(stubs: Path) -> str:
    path = stubs / "hosts"
    path.write_text("# the cluster\nalpha slots=8\n\nbeta slots=8  # the other\n")
    return str(path)


def test_a_hostfile_starts_the_same_on_every_host(stubs: Path) -> None:
    done = run(stubs, "hostfile.sh", "--config", "my run.yaml", HOSTFILE=hosts(stubs), IFNAME="eth1", PORT="4000")
    assert done.returncode == 0, done.stderr
    started = calls(stubs, "torchrun")
    assert len(started) == 2
    for call in started:
        assert has(call, "--nnodes", "2")
        assert has(call, "--rdzv-endpoint", "alpha:4000")
        assert has(call, "train", "--config", "my run.yaml")
        assert "GLOO_SOCKET_IFNAME=eth1" in call
    hosting = sorted(word for call in started for word in call if word.startswith("join_timeout"))
    assert hosting == ["join_timeout=300,read_timeout=60,is_host=0", "join_timeout=300,read_timeout=60,is_host=1"]
    assert sorted(call[3] for call in calls(stubs, "ssh")) == ["alpha", "beta"]


def test_a_host_that_cannot_be_reached_ends_the_launch(stubs: Path) -> None:
    done = run(stubs, "hostfile.sh", HOSTFILE=hosts(stubs), BROKEN_HOST="beta")
    assert done.returncode == 255


def test_an_empty_hostfile_is_told(stubs: Path) -> None:
    (stubs / "empty").write_text("# nothing\n")
    done = run(stubs, "hostfile.sh", HOSTFILE=str(stubs / "empty"))
    assert done.returncode == 2
    assert "names 0 hosts; give one host a line" in done.stderr
