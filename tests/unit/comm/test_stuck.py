"""A wait without an end of its own gets one."""

import subprocess
import sys
from pathlib import Path

import pytest

WAIT = """\
import sys, time
from datetime import timedelta
from megatron_tlm.comm import stuck
stuck.GRACE = timedelta(seconds=0)
with stuck.ends_when_stuck(timedelta(seconds=float(sys.argv[1])), "the rendezvous") as alive:
    for _ in range(6):
        time.sleep(0.2)
        alive() if sys.argv[2] == "alive" else None
time.sleep(1)
"""


@pytest.mark.parametrize(
    ("seconds", "sign", "code"),
    [("0.6", "silent", 1), ("0.6", "alive", 0), ("60", "silent", 0)],
    ids=["stuck", "at work", "in time"],
)
def test_a_process_without_a_sign_of_life_ends_with_a_sentence(seconds: str, sign: str, code: int) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", WAIT, seconds, sign], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    if code:
        assert "megatron-tlm: error: rank 0 on " in done.stderr
        assert ": the rendezvous = no answer for 0.6 s; a node or its link is gone" in done.stderr
    else:
        assert done.stderr == ""
