"""What a micro-batch brings to one rank."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Samples, tokens per sample, bytes per element, and how tensor ranks share them."""

    seq_length: int
    micro_batch_size: int
    padded_vocab_size: int
    element_bytes: int = 4
    tensor_degree: int = 1
    sequence_parallel: bool = False
    recompute: str | None = None

    @property
    def tokens(self) -> int:
        return self.micro_batch_size * self.seq_length

    @property
    def residual_share(self) -> int:
        """By how many ranks the residual stream is shared."""
        return self.tensor_degree if self.sequence_parallel else 1
