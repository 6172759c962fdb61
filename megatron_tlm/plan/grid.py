"""Ranks as coordinates: pipe x data x tensor, tensor fastest.

The order is DeepSpeed's (`PipeModelDataParallelTopology`): neighbours in rank share a layer, so that tensor
parallelism, which talks most, stays inside a node.

    rank = (pipe * data_degree + data) * tensor_degree + tensor
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from megatron_tlm.errors import PlanError

Axis = Literal["pipe", "data", "tensor"]


class Coordinate(NamedTuple):
    """Where a rank stands on each axis."""

    pipe: int
    data: int
    tensor: int


@dataclass(frozen=True)
class Grid:
    """The degree of each axis of the mesh."""

    pipe: int = 1
    data: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for axis in ("pipe", "data", "tensor"):
            if getattr(self, axis) < 1:
                raise PlanError(f"grid.{axis} = {getattr(self, axis)} is below 1; give each axis at least one rank")

    @property
    def size(self) -> int:
        return self.pipe * self.data * self.tensor

    def coordinate(self, rank: int) -> Coordinate:
        """The place of a global rank; PlanError outside 0..size-1."""
        if not 0 <= rank < self.size:
            raise PlanError(f"rank = {rank} lies outside the grid of {self.size} ranks; give 0..{self.size - 1}")
        rest, tensor = divmod(rank, self.tensor)
        pipe, data = divmod(rest, self.data)
        return Coordinate(pipe, data, tensor)

    def rank(self, coordinate: Coordinate) -> int:
        """The global rank at a place: the inverse of `coordinate`."""
        return (coordinate.pipe * self.data + coordinate.data) * self.tensor + coordinate.tensor

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ along one axis only, a tuple per group, in rank order."""
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            others = self.coordinate(rank)._replace(**{axis: 0})
            members.setdefault(others, []).append(rank)
        return tuple(tuple(ranks) for ranks in members.values())
