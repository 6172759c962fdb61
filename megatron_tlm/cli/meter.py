"""How far a job that counts bytes is, for a person at a terminal or a reader of a log."""

from megatron_tlm.cli.countdown import Countdown
from megatron_tlm.data.progress import clock
from megatron_tlm.report.scale import size_text


class Meter(Countdown):
    """A countdown of bytes."""

    def _line(self, done: int, whole: int, seconds: float) -> str:
        rate = done / seconds
        return (
            f"{self._text}: {size_text(done)} of {size_text(whole)} ({100 * done // whole} %), {size_text(rate)}/s, "
            f"{clock((whole - done) / rate)} left"
        )
