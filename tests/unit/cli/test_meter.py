"""Progress in a log: a line now and then, with rate and time left."""

import pytest

from megatron_tlm.cli.meter import Meter


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("megatron_tlm.cli.countdown.time.perf_counter", lambda: clock[0])
    with Meter("converting") as meter:
        for second in range(1, 13):
            clock[0] = float(second)
            meter(second * 100 * 2**20, 2000 * 2**20)
    assert capsys.readouterr().err == "converting: 1000 MiB of 1.95 GiB (50 %), 100 MiB/s, 0:00:10 left\n"
