"""Everything but the cut: a model on a grid, on a device. From it come the pieces, in ticks and bytes, to be cut.

A tick is a picosecond where the device is known, by description or measurement; else one FLOP of one rank, and then
messages, reductions and updates take none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.activations import kept_bytes
from megatron_tlm.plan.costs import tensor_traffic, unit_cost
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.hardware import Hardware, Profile
from megatron_tlm.plan.memory import BUCKET_ELEMENTS, MemoryUse, TrainingState
from megatron_tlm.plan.mixers import CHUNK_KERNELS, chunk_steps
from megatron_tlm.plan.pieces import Buffers, Piece, Pipeline
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import shard
from megatron_tlm.plan.units import Unit
from megatron_tlm.plan.workload import Workload

TICKS_PER_SECOND = 10**12
ROTARY_TABLE_BYTES = 4  # float32 cosines and sines, H / 2 each per position
GRADIENT_BYTES = 4  # gradients travel in float32
UPDATE_BYTES = 28  # what AdamW reads and writes per parameter in float32: weight, gradient, two moments


@dataclass(frozen=True)
class Setting:
    """`memory_limit` is a rank's, in bytes; None is without bound."""

    shape: ModelShape
    grid: Grid
    workload: Workload
    micro_batches: int
    state: TrainingState
    hardware: Hardware | None = None
    profile: Profile | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if self.profile is None:
            return
        mine = {
            "seq_length": self.workload.seq_length,
            "micro_batch_size": self.workload.micro_batch_size,
            "tensor_degree": self.grid.tensor,
            "bf16": self.state.bf16,
            "recompute": self.workload.recompute,
            "hidden_size": self.shape.hidden_size,
        }
        for name, value in mine.items():
            measured = getattr(self.profile, name)
            if measured != value:
                raise PlanError(f"profile.{name} = {measured} is not this run's {value}; measure with plan --profile")

    @property
    def in_seconds(self) -> bool:
        """Whether a tick is a picosecond."""
        return self.hardware is not None or self.profile is not None

    def seconds(self, ticks: float) -> float | None:
        return ticks / TICKS_PER_SECOND if self.in_seconds else None

    @property
    def tied(self) -> bool:
        """Whether the last stage has a copy of the embedding."""
        return self.shape.tied_embeddings and self.grid.pipe > 1

    @property
    def message_bytes(self) -> int:
        """What a stage sends its neighbour for one micro-batch, one way."""
        workload = self.workload
        return workload.tokens * self.shape.hidden_size * workload.element_bytes // workload.residual_share

    def local_parameters(self, unit: Unit) -> int:
        """Elements of a unit on one tensor rank, vocabulary padding and a tied head's copy included."""
        total = 0
        for spec in unit.parameters:
            rows = self.workload.padded_vocab_size if spec.padded else None
            size = 1
            for extent in shard(spec, self.grid.tensor, 0, rows).local_shape:
                size *= extent
            total += size
        if unit.kind == "head" and self.tied:
            total += self.workload.padded_vocab_size // self.grid.tensor * self.shape.hidden_size
        return total

    def unit_piece(self, unit: Unit) -> Piece:
        """A unit in ticks and bytes."""
        cost = unit_cost(unit, self.shape, self.workload)
        parameters = self.local_parameters(unit)
        state = self.state
        static = state.weights(parameters) + state.gradients(parameters) + state.optimizer(parameters)
        if unit.kind == "mixer":
            static += self.rotary_bytes
        forward, backward = self._unit_ticks(unit, cost.forward_work, cost.backward_work, parameters)
        return Piece(
            forward=forward,
            backward=backward,
            reduce=self._ticks(self._reduce_seconds(parameters)),
            update=self._ticks(self._update_seconds(parameters)),
            static_bytes=static,
            kept_bytes=cost.activation_bytes,
            working_bytes=cost.working_bytes,
            parameters=parameters,
        )

    @property
    def rotary_bytes(self) -> int:
        return self.workload.seq_length * self.shape.kv_channels * ROTARY_TABLE_BYTES

    @cached_property
    def pipeline(self) -> Pipeline:
        rates = self.state.rates
        message = tied = 0.0
        if self.hardware is not None and self.grid.pipe > 1:
            across = self.hardware.bandwidth(self.grid.size)
            message = self.message_bytes / across + self.hardware.message_latency
            rows = self.workload.padded_vocab_size // self.grid.tensor
            tied = rows * self.shape.hidden_size * self.workload.element_bytes / across if self.tied else 0.0
        if self.profile is not None and self.grid.pipe > 1:
            measured = self.profile.message_seconds(self.message_bytes)
            message = message if measured is None else measured
        return Pipeline(
            num_stages=self.grid.pipe,
            micro_batches=self.micro_batches,
            message=self._ticks(message),
            tied=self._ticks(tied),
            message_bytes=self.message_bytes,
            memory_limit=self.memory_limit,
            buffers=Buffers(BUCKET_ELEMENTS, *rates),
        )

    @staticmethod
    def _ticks(seconds: float) -> int:
        return round(seconds * TICKS_PER_SECOND)

    def _unit_ticks(self, unit: Unit, forward_work: int, backward_work: int, parameters: int) -> tuple[int, int]:
        tokens = self.workload.tokens
        if self.profile is not None:
            forward, backward = self.profile.seconds(unit.kind, unit.width, unit.name)
            return self._ticks(forward), self._ticks(backward)
        if self.hardware is None:
            return forward_work * tokens, backward_work * tokens
        device = self.hardware
        rate = device.flops(self.state.bf16)
        # Element-wise work moves about what autograd keeps: written and read once forward, twice that backward.
        whole = kept_bytes(unit, self.shape, replace(self.workload, recompute=None))
        moved = 2 * whole / device.memory_bandwidth
        talked = tensor_traffic(unit, self.shape, self.workload) / device.bandwidth(self.grid.tensor)
        again = moved if self.workload.recompute == "full" and unit.kind in ("mixer", "mlp") else 0.0
        forward = forward_work * tokens / rate + moved + talked / 3
        backward = backward_work * tokens / rate + 2 * moved + again + talked * 2 / 3
        # Chunks of a memory follow each other, each so small that launching its kernels may take longer than they do.
        chunks = chunk_steps(self.shape, self.workload.seq_length) if unit.kind == "mixer" else 0
        forward = max(forward, chunks * CHUNK_KERNELS.forward * device.kernel_latency)
        backward = max(backward, chunks * CHUNK_KERNELS.backward * device.kernel_latency)
        if self.state.zero_stage == 2:
            return self._ticks(forward), self._ticks(backward + self._all_reduce_seconds(parameters))
        gathered, scattered = self._hidden_seconds(parameters)
        return self._ticks(max(forward, gathered)), self._ticks(max(backward, gathered + scattered))

    def _hidden_seconds(self, parameters: int) -> tuple[float, float]:
        """ZeRO 3 gathers weights and reduce-scatters gradients in every micro-batch, behind the work: for this stage
        alone DeepSpeed turns overlap_comm on by itself."""
        if self.state.zero_stage < 3:
            return 0.0, 0.0
        share = (self.grid.data - 1) / self.grid.data / self._data_bandwidth
        return parameters * self.state.element_bytes * share, parameters * GRADIENT_BYTES * share

    def _all_reduce_seconds(self, parameters: int) -> float:
        """Gradients over the data ranks, both ways round the ring."""
        data = self.grid.data
        return 2 * parameters * GRADIENT_BYTES * (data - 1) / data / self._data_bandwidth

    @property
    def _data_bandwidth(self) -> float:
        assert self.hardware is not None
        return self.hardware.bandwidth(self.grid.tensor * self.grid.data)

    def _reduce_seconds(self, parameters: int) -> float:
        """Once per step with ZeRO 0 and 1. DeepSpeed all-reduces up to ZeRO 2, although from 1 on a scatter would do:
        in bfloat16 by the engine's buckets, in float32 by use_multi_rank_bucket_allreduce."""
        return 0.0 if self.hardware is None or self.state.zero_stage >= 2 else self._all_reduce_seconds(parameters)

    def _update_seconds(self, parameters: int) -> float:
        """AdamW moves its state through memory; from ZeRO 1 to 2 the new weights are gathered."""
        data = self.grid.data
        own = parameters if self.state.zero_stage == 0 else parameters / data
        measured = own * self.profile.update_seconds if self.profile is not None else 0.0
        if self.hardware is None:
            return measured
        seconds = measured or own * UPDATE_BYTES / self.hardware.memory_bandwidth
        if self.state.zero_stage in (1, 2) and data > 1:
            seconds += parameters * self.state.element_bytes * (data - 1) / data / self._data_bandwidth
        return seconds

    def stage_memory(self, stage: int, units: Sequence[Unit]) -> MemoryUse:
        """Bytes of a stage that owns these units, by kind; the total is what `Pieces.stage_bytes` gives."""
        pieces = [self.unit_piece(unit) for unit in units]
        parameters, state, pipeline = sum(piece.parameters for piece in pieces), self.state, self.pipeline
        kept = 0
        at_work = 0
        for piece in pieces:
            kept += piece.kept_bytes
            at_work = max(at_work, kept + piece.working_bytes)
        tables = self.rotary_bytes * sum(unit.kind == "mixer" for unit in units)
        return MemoryUse(
            weights=sum(state.weights(piece.parameters) for piece in pieces) + tables,
            gradients=sum(state.gradients(piece.parameters) for piece in pieces),
            optimizer=sum(state.optimizer(piece.parameters) for piece in pieces),
            activations=pipeline.held(stage) * kept,
            working=at_work - kept,
            messages=pipeline.border_bytes(stage),
            buffers=state.running_buffers(parameters),
            after=state.after_buffers(parameters),
        )


def glue(units: Sequence[Unit], setting: Setting) -> tuple[range, ...]:
    """The pieces a cut may not part, as ranges of unit indices.

    DeepSpeed needs on every stage a decayed and an undecayed parameter, and in bfloat16 on every rank one that counts
    in the gradient norm. The embedding alone has no undecayed one: it stays beside the first mixer. A tied head alone
    has a norm, which counts on the first tensor rank, and a copy, which does not count at all: with more tensor ranks
    in bfloat16 it stays beside the last MLP.
    """
    count = len(units)
    if setting.grid.pipe == 1:
        return (range(count),)
    last = count - (2 if setting.tied and setting.state.bf16 and setting.grid.tensor > 1 else 1)
    return (range(2), *(range(index, index + 1) for index in range(2, last)), range(last, count))


def merge(pieces: Sequence[Piece], ranges: Sequence[range]) -> tuple[Piece, ...]:
    """One piece for each range of pieces."""
    return tuple(_merged([pieces[index] for index in indices]) for indices in ranges)


def _merged(pieces: Sequence[Piece]) -> Piece:
    kept = at_work = 0
    for piece in pieces:
        kept += piece.kept_bytes
        at_work = max(at_work, kept + piece.working_bytes)
    names = ("forward", "backward", "reduce", "update", "static_bytes", "kept_bytes", "parameters")
    sums = {name: sum(getattr(piece, name) for piece in pieces) for name in names}
    return Piece(**sums, working_bytes=at_work - kept)
