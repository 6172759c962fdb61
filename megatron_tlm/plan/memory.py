"""Bytes on one rank: weights, gradients, optimizer state, activations, buffers, as DeepSpeed 0.19 allocates them.

n parameters on this tensor rank, d data ranks, B = min(n, bucket) elements of a communication bucket (all measured on
the engines themselves, by what torch's allocator has out):

                 weights   gradients       optimizer           buffers beside activations   after the last backward
    fp32 zero 0  4 n       4 n             8 n  (two moments)                               4 B
         zero 1  4 n       4 n             12 n / d (+ master)  4 bucket (not in a pipeline)  8 bucket in a pipeline
         zero 2  4 n       4 n/d + 4 B     12 n / d            4 bucket
         zero 3  4 n/d     4 n/d + 4 B     12 n / d            4 bucket + 8 B
    bf16 zero 1  2 n       2 n + 4 n       12 n / d                                         4 B
         zero 2  2 n       4 n/d + 2 B     12 n / d            2 bucket + 8 B
         zero 3  2 n/d     4 n/d + 2 B     12 n / d            4 bucket + 6 B
"""

from dataclasses import dataclass
from typing import NamedTuple

BUCKET_ELEMENTS = 50_000_000  # as `train.deepspeed_config` sets it
MOMENT_BYTES = 8
MASTER_BYTES = 4
KINDS = ("weights", "gradients", "optimizer", "activations", "working", "messages", "buffers")


class Rates(NamedTuple):
    """Bytes per element of a communication bucket, while micro-batches run and after the last; and constant bytes."""

    running: int
    running_constant: int
    after: int
    after_constant: int


@dataclass(frozen=True)
class TrainingState:
    """What decides the bytes per parameter."""

    zero_stage: int
    data_degree: int
    bf16: bool
    pipelined: bool

    @property
    def element_bytes(self) -> int:
        return 2 if self.bf16 else 4

    def _shared(self, size: int, from_stage: int) -> int:
        """Bytes of one data rank, shared from a ZeRO stage on."""
        return -(-size // self.data_degree) if self.zero_stage >= from_stage else size

    def weights(self, parameters: int) -> int:
        return self._shared(self.element_bytes * parameters, 3)

    def gradients(self, parameters: int) -> int:
        """Without the part in buckets. bfloat16 gradients are added up in float32, beside themselves."""
        accumulated = self._shared(4 * parameters, 2)
        return accumulated + (2 * parameters if self.bf16 and self.zero_stage < 2 else 0)

    def optimizer(self, parameters: int) -> int:
        """Moments, and from ZeRO 1 on a float32 master copy whatever the precision."""
        master = MASTER_BYTES if self.zero_stage else 0
        return self._shared((MOMENT_BYTES + master) * parameters, 1)

    @property
    def rates(self) -> Rates:
        """See the table above."""
        match self.zero_stage, self.bf16:
            case 0, _:
                return Rates(0, 0, 4, 0)
            case 1, True:
                return Rates(0, 0, 4, 0)
            case 1, False:
                return Rates(0, 0, 0, 8 * BUCKET_ELEMENTS) if self.pipelined else Rates(0, 4 * BUCKET_ELEMENTS, 0, 0)
            case 2, True:
                return Rates(2 + 8, 2 * BUCKET_ELEMENTS, 0, 0)
            case 2, False:
                return Rates(4, 4 * BUCKET_ELEMENTS, 0, 0)
            case _, True:
                return Rates(2 + 6, 4 * BUCKET_ELEMENTS, 0, 0)
            case _:
                return Rates(4 + 8, 4 * BUCKET_ELEMENTS, 0, 0)

    def running_buffers(self, parameters: int) -> int:
        """Bytes of communication buffers while micro-batches run."""
        return self.rates.running * min(parameters, BUCKET_ELEMENTS) + self.rates.running_constant

    def after_buffers(self, parameters: int) -> int:
        """Bytes of communication buffers once the activations are gone."""
        return self.rates.after * min(parameters, BUCKET_ELEMENTS) + self.rates.after_constant


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one rank by kind. `messages` are what pipeline neighbours send; `buffers` run beside activations,
    `after` when those are gone, so the peak holds one or the other."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    messages: int
    buffers: int
    after: int

    @property
    def total(self) -> int:
        """The peak of the step."""
        state = self.weights + self.gradients + self.optimizer
        return state + max(self.activations + self.working + self.messages + self.buffers, self.after)

    def by_kind(self) -> dict[str, int]:
        """What is there at the peak; the sum is `total`."""
        running = {kind: getattr(self, kind) for kind in KINDS}
        if self.after <= self.activations + self.working + self.messages + self.buffers:
            return running
        return running | {"activations": 0, "working": 0, "messages": 0, "buffers": self.after}
