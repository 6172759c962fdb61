"""How new what a layer writes is: its cosine with the residual stream (arXiv:2606.23670, layer-wise novelty).

    z_l = h_l + Mixer_l(h_l)        h_{l+1} = z_l + MLP_l(z_l)
    rho_block(l) = cos(h_{l+1} - h_l, h_l)        rho_mlp(l) = cos(h_{l+1} - z_l, h_l)

Both are means over tokens. Near 0 a layer writes new directions, above 0 it adds to what is there. What a layer adds is
taken from the stream itself, so in bfloat16 it carries the rounding of the sum; levels of a continuum memory count as
one MLP.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import StatisticsError, correlation
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from megatron_tlm.comm.groups import Mesh, all_reduce_sum
from megatron_tlm.comm.stages import receive_from_previous, send_to_next
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.units import Unit


class LayerNovelty(NamedTuple):
    """Of one layer, means over tokens."""

    rho_block: float
    rho_mlp: float


def pearson(by_depth: Sequence[float]) -> float | None:
    """Pearson's r of a value with the layer's number; None where it says nothing: values that are all equal, or fewer
    than three, since two always lie on a line."""
    if len(by_depth) < 3:
        return None
    try:
        return correlation(range(len(by_depth)), by_depth)
    except StatisticsError:
        return None


def cosines(h_BsD: Tensor, z_BsD: Tensor, out_BsD: Tensor) -> tuple[Tensor, Tensor]:
    """rho_block and rho_mlp of every token, [B, s] float32, of a layer's input, its middle and its output.

    A branch that adds nothing at all has no direction: its cosine is 0.
    """
    h, z, out = h_BsD.float(), z_BsD.float(), out_BsD.float()
    cosine = torch.nn.functional.cosine_similarity
    return cosine(out - h, h, dim=-1), cosine(out - z, h, dim=-1)


@dataclass
class _Layer:
    """What was seen of a layer by this stage, one tensor per forward pass, until it is whole; then its sums."""

    h: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # rho_block, rho_mlp, tokens

    def close(self) -> None:
        """Counts what is whole, and forgets it."""
        for passed in zip(self.h, self.z, self.out, strict=True):
            block_Bs, mlp_Bs = cosines(*passed)
            seen = (float(block_Bs.double().sum()), float(mlp_Bs.double().sum()), float(block_Bs.numel()))
            self.sums = [a + b for a, b in zip(self.sums, seen, strict=True)]
        self.h, self.z, self.out = [], [], []


class NoveltyProbe:
    """Watches the forward passes of a stage: `with` it, run the model without gradients, then ask for the `result`.

    Where a pipeline is cut inside a layer, the layer's input is kept until `result` hands it to the stage that ends it.
    """

    def __init__(self, stage: Stage, mesh: Mesh) -> None:
        self._stage, self._mesh = stage, mesh
        self._layers: dict[int, _Layer] = {}
        self._hooks: list[Any] = []
        mlps = [unit for unit in stage.plan.units if unit.kind == "mlp"]
        self._last = {unit.layer: unit for unit in mlps}
        self._first = {unit.layer: unit for unit in reversed(mlps)}

    def __enter__(self) -> Self:
        for unit, block in zip(self._stage.units, self._stage.blocks, strict=True):
            if unit.layer is not None:
                layer = self._layers.setdefault(unit.layer, _Layer())
                self._hooks.append(block.register_forward_hook(partial(self._saw, unit, layer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _saw(self, unit: Unit, layer: _Layer, block: Any, given: tuple[Tensor, ...], out_BsD: Tensor) -> None:
        if unit.kind == "mixer":
            layer.h.append(given[0].detach())
        if unit == self._first[unit.layer]:
            layer.z.append(given[0].detach())
        if unit == self._last[unit.layer]:
            layer.out.append(out_BsD.detach())
            if layer.h and layer.z:
                layer.close()

    def result(self) -> tuple[LayerNovelty, ...]:
        """One per layer of the whole model, over all tokens that any rank saw. Collective over all ranks."""
        self._hand_on()
        num_layers = self._stage.plan.shape.num_layers
        # Tensor ranks that see the same tokens count them alike, above and below the fraction's line.
        total = all_reduce_sum(
            [value for index in range(num_layers) for value in self._layers.get(index, _Layer()).sums]
        )
        by_layer = [total[3 * index : 3 * index + 3] for index in range(num_layers)]
        return tuple(LayerNovelty(block / tokens, mlp / tokens) for block, mlp, tokens in by_layer)

    def _hand_on(self) -> None:
        """From stage to stage, what a layer that is cut needs where it ends: h, and z if that lies before."""
        pipe, units, stages = self._mesh.pipe, self._stage.plan.units, self._stage.plan.stages
        ours = stages[pipe.rank]
        begins, follows = units[ours.start], units[min(ours.stop, len(units) - 1)]
        if begins.kind == "mlp":
            layer = self._layers[begins.layer or 0]
            layer.h = self._receive()
            if begins != self._first[begins.layer]:
                layer.z = self._receive()
            if layer.out:
                layer.close()
        if follows.kind == "mlp":
            layer = self._layers[follows.layer or 0]
            self._send(layer.h)
            if follows != self._first[follows.layer]:
                self._send(layer.z)

    def _send(self, passes: Sequence[Tensor]) -> None:
        """How many, then each: its size and itself."""
        pipe, device = self._mesh.pipe, next(self._stage.parameters()).device
        send_to_next(torch.tensor([len(passes)], device=device), pipe)
        for x_BsD in passes:
            send_to_next(torch.tensor(x_BsD.shape, device=device), pipe)
            send_to_next(x_BsD, pipe)

    def _receive(self) -> list[Tensor]:
        pipe, weight = self._mesh.pipe, next(self._stage.parameters())
        integers = torch.int64, weight.device, pipe
        count = int(receive_from_previous([1], *integers))
        return [
            receive_from_previous(receive_from_previous([3], *integers).tolist(), weight.dtype, weight.device, pipe)
            for _ in range(count)
        ]
