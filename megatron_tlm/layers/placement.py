"""Where a layer's tensors live: which tensor ranks share it, in which dtype, on which device.

The two doors of a tensor-parallel block are here, so that a block communicates once on its way in and once on its way
out, however many matrices lie between.

Shapes: B microbatch, S sequence, s this rank's share of it under sequence parallelism (else S), D model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatron_tlm.comm.collectives import copy_to, gather_sequence, reduce_from, reduce_scatter_sequence, start_gather
from megatron_tlm.comm.groups import AxisGroup


class GatheredAgain:
    """The second gathering, in backward: started by the first matrix that asks, dropped by the last."""

    def __init__(self, tensor: AxisGroup) -> None:
        self._tensor = tensor
        self._users = 0
        self._asked = 0
        self._finish: Callable[[], Tensor] | None = None
        self._whole_BSD: Tensor | None = None

    def expect_user(self) -> None:
        """One more matrix will ask for the whole."""
        self._users += 1

    def start(self, shard_BsD: Tensor) -> None:
        """Begin to gather, unless another matrix has."""
        if self._whole_BSD is None and self._finish is None:
            self._finish = start_gather(shard_BsD, self._tensor)

    def whole(self) -> Tensor:
        """[B, S, D], after `start`."""
        if self._finish is not None:
            self._whole_BSD, self._finish = self._finish(), None
        whole_BSD = self._whole_BSD
        assert whole_BSD is not None, "whole() before start()"
        self._asked += 1
        if self._asked == self._users:
            self._asked, self._whole_BSD = 0, None
        return whole_BSD


class Kept(NamedTuple):
    """What the matrices of one block keep of a gathered activation for backward: its shard, to gather it from again.

    A whole activation kept in every block would undo what sharding the sequence saves (arXiv:2205.05198, 4.2.2).
    """

    shard_BsD: Tensor
    again: GatheredAgain


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

    def enter(self, x_BsD: Tensor) -> tuple[Tensor, Kept | None]:
        """[B, s, D] -> [B, S, D] before sharded matrices, and what they shall keep of it (None: itself).

        The gradient is summed over the tensor ranks.
        """
        if self.shards_sequence:
            return gather_sequence(x_BsD, self.tensor), Kept(x_BsD.detach(), GatheredAgain(self.tensor))
        return copy_to(x_BsD, self.tensor), None

    def leave(self, x_BSD: Tensor) -> Tensor:
        """Partial sums [B, S, D] -> their sum [B, s, D] after sharded matrices."""
        return reduce_scatter_sequence(x_BSD, self.tensor) if self.shards_sequence else reduce_from(x_BSD, self.tensor)

    def shared(self, parameter: Tensor) -> Tensor:
        """A replicated parameter that meets sequence shards only: its gradient is summed over the tensor ranks."""
        return copy_to(parameter, self.tensor) if self.shards_sequence else parameter
