"""How far a job that counts bytes is, for a person at a terminal or a reader of a log."""

from megatron_tlm.cli.countdown import Countdown


class Meter(Countdown):
    """A countdown of bytes, in GB."""

    def _line(self, done: int, whole: int, seconds: float) -> str:
        rate = done / seconds
        return (
            f"{self._text} {done / 1e9:.2f} of {whole / 1e9:.2f} GB ({100 * done / whole:.0f} %), "
            f"{rate / 1e6:.0f} MB/s, {(whole - done) / rate:.0f} s left"
        )
