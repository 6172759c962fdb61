"""What a run shows of itself: the ports it opens, whom its files belong to, and nothing of its environment."""

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.equivalence.launching import launch, run_config

SECRET = "hf_a-token-that-nobody-may-see"
NOT_LINUX = not Path("/proc/net/tcp").exists()


def listening(pid: int) -> Iterator[tuple[str, int]]:
    """Every (address, port) at which a process listens; addresses in the kernel's hexadecimal."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except FileNotFoundError:
            continue
    for table in ("tcp", "tcp6"):
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:]):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].rpartition(":")
                yield address, int(port, 16)


def is_loopback(address: str) -> bool:
    return address.endswith("0100007F") or address == "0" * 24 + "01000000"


@pytest.mark.skipif(NOT_LINUX, reason="listening sockets are looked up in /proc")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_opens_no_port_but_its_meeting_point(ranks: int, tmp_path: Path) -> None:
    """gloo listens on the interface that it was given, the loopback here; the store of several ranks everywhere."""
    config = run_config(tmp_path, train_iters=100_000, eval_interval=100_000)
    open_ports: dict[int, list[tuple[str, int]]] = {}
    meeting: list[int] = []

    def note(rank: int) -> None:
        (tmp_path / "port").write_text(os.environ["MASTER_PORT"])

    def look(pids: list[int]) -> None:
        metrics = tmp_path / "log" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        meeting.append(int((tmp_path / "port").read_text()))
        for rank, pid in enumerate(pids):
            open_ports[rank] = list(listening(pid))
            os.kill(pid, 15)

    ended = launch(config, ranks, before=note, meanwhile=look)
    assert ended.codes == [0] * ranks, ended.complained
    seen_by_others = [(rank, port) for rank, ports in open_ports.items() for at, port in ports if not is_loopback(at)]
    assert seen_by_others == ([] if ranks == 1 else [(0, meeting[0])])


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o027, 0o640, 0o750), (0o002, 0o664, 0o775)], ids=oct)
def test_files_are_the_users_umask_and_hold_nothing_of_the_environment(
    umask: int, file: int, folder: int, tmp_path: Path
) -> None:
    config = run_config(tmp_path, train_iters=4, save_interval=2, eval_interval=2)
    config = replace(config, data=replace(config.data, data_cache_path=str(tmp_path / "cache")))

    def before(rank: int) -> None:
        os.umask(umask)
        os.environ["HF_TOKEN"] = os.environ["WANDB_API_KEY"] = SECRET

    ended = launch(config, 2, before=before)
    assert ended.codes == [0, 0], ended.complained
    assert SECRET not in ended.said + ended.complained
    written = [path for name in ("ck", "log") for path in sorted((tmp_path / name).rglob("*"))]
    assert len(written) > 8
    for path in written:
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(folder if path.is_dir() else file), path
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
