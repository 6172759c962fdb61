"""Where a layer's tensors live: which tensor ranks share it, in which dtype, on which device.

The two doors of a tensor-parallel block are here, so that a block communicates once on its way in and once on its way
out, however many matrices lie between.

Shapes: B microbatch, S sequence, s this rank's share of it under sequence parallelism (else S), D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from megatron_tlm.comm.collectives import copy_to, gather_sequence, reduce_from, reduce_scatter_sequence
from megatron_tlm.comm.groups import AxisGroup


@dataclass(frozen=True)
class Placement:
    """Tensor ranks, sequence parallelism, dtype and device of a layer; the default is one CPU process in float32."""

    tensor: AxisGroup = field(default_factory=AxisGroup.single)
    sequence_parallel: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shards_sequence(self) -> bool:
        """Whether activations between blocks are sequence shards."""
        return self.sequence_parallel and self.tensor.size > 1

    def parameter(self, shape: Sequence[int], *, sharded: bool) -> nn.Parameter:
        """An uninitialised parameter; a shard carries DeepSpeed's mark, by which its norm counts on every rank."""
        parameter = nn.Parameter(torch.empty(tuple(shape), dtype=self.dtype, device=self.device))
        if sharded and self.tensor.size > 1:
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        return parameter

    def enter(self, x_BsD: Tensor) -> Tensor:
        """[B, s, D] -> [B, S, D] before sharded matrices; the gradient is summed over the tensor ranks."""
        return gather_sequence(x_BsD, self.tensor) if self.shards_sequence else copy_to(x_BsD, self.tensor)

    def leave(self, x_BSD: Tensor) -> Tensor:
        """Partial sums [B, S, D] -> their sum [B, s, D] after sharded matrices."""
        return reduce_scatter_sequence(x_BSD, self.tensor) if self.shards_sequence else reduce_from(x_BSD, self.tensor)

    def shared(self, parameter: Tensor) -> Tensor:
        """A replicated parameter that meets sequence shards only: its gradient is summed over the tensor ranks."""
        return copy_to(parameter, self.tensor) if self.shards_sequence else parameter
