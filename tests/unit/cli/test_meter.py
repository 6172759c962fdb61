"""Progress in a log: a line now and then, with rate and time left."""

import pytest

from megatron_tlm.cli.meter import Meter


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("megatron_tlm.cli.countdown.time.perf_counter", lambda: clock[0])
    with Meter("converting") as meter:
        for second in range(1, 13):
            clock[0] = float(second)
            meter(second * 10**8, 2 * 10**9)
    assert capsys.readouterr().err == "converting 1.00 of 2.00 GB (50 %), 100 MB/s, 10 s left\n"
