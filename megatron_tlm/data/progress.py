"""How far a preprocessing run is, as numbers to keep and as a line to show."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Counts:
    """What a run has taken in so far, whichever process it was in."""

    chunks: int = 0
    documents: int = 0
    empty_documents: int = 0  # under any key: they have a border but no sequence
    tokens: int = 0
    text_bytes: int = 0  # of the lines read, uncompressed
    input_bytes: int = 0  # of the files as they lie on disk
    bad_lines: Mapping[str, int] = field(default_factory=dict)  # by kind

    @property
    def num_bad(self) -> int:
        return sum(self.bad_lines.values())


@dataclass(frozen=True)
class Progress:
    """How far a run is; `str()` of it is the line to show. Rates leave out what was `kept` of an earlier run."""

    counts: Counts
    kept: Counts
    total_input_bytes: int  # 0 where nobody knows
    elapsed_seconds: float

    @property
    def share(self) -> float | None:
        return self.counts.input_bytes / self.total_input_bytes if self.total_input_bytes else None

    @property
    def eta_seconds(self) -> float | None:
        done = self.counts.input_bytes - self.kept.input_bytes
        if not self.total_input_bytes or not done:
            return None
        return self.elapsed_seconds * max(0, self.total_input_bytes - self.counts.input_bytes) / done

    def __str__(self) -> str:
        now, kept = self.counts, self.kept
        seconds = max(self.elapsed_seconds, 1e-9)
        eta = self.eta_seconds
        parts = [
            f"{now.documents} documents, {now.tokens} tokens, {now.text_bytes / 1e6:.1f} MB",
            f"{(now.documents - kept.documents) / seconds:.0f} documents/s, "
            f"{(now.text_bytes - kept.text_bytes) / 1e6 / seconds:.2f} MB/s, "
            f"{(now.tokens - kept.tokens) / seconds:.0f} tokens/s",
        ]
        if self.share is not None:
            parts.append(f"{self.share:.0%}" + (f", ETA {clock(eta)}" if eta is not None else ""))
        if now.num_bad:
            parts.append(f"{now.num_bad} bad lines")
        return " | ".join(parts)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
