"""Every layout of a model on N devices, ranked by predicted step time; each refused one with what refused it.

    tensor x pipe x data = N     tensor ranks within a node, as many stages as pieces at the most
    micro-batch                  powers of two that divide a data rank's share of the global batch
    ZeRO                         0-3, with a pipeline 0-1; in bfloat16 from 1 on
    recompute                    none, selective, full
    sequence parallelism         wherever there are tensor ranks and they divide the sequence

A layout's time is that of its best cut within memory. All get a bound first: no cut is faster than perfectly even
stages. Those that the bound already puts behind the `top` fastest keep it for their time, and say so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megatron_tlm.config.schema import Config, Recompute
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.cut import best_cut, fits, lightest_cut
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.hardware import Hardware
from megatron_tlm.plan.memory import TrainingState
from megatron_tlm.plan.pieces import Piece, Pieces, Pipeline
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.plan.resolve import is_divisible
from megatron_tlm.plan.setting import TICKS_PER_SECOND, Setting, glue, merge
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import padded_vocab_size
from megatron_tlm.plan.units import Unit, build_units
from megatron_tlm.plan.workload import Workload

RECOMPUTES: tuple[Recompute | None, ...] = (None, "selective", "full")
LARGEST_MICRO_BATCH = 64
SAME_TIME = 1e-6  # relative: ticks are whole, more and smaller micro-batches round otherwise
SEARCH_EFFORT = 200_000  # settles the step time; ties may stay open


@dataclass(frozen=True)
class Layout:
    """One way to lay the model out. Either `refused` says why not, or it fits: `step_seconds` is its predicted time,
    a lower bound of it where not `simulated`, and `peak_bytes` the fullest rank's memory, None where not computed.
    """

    grid: Grid
    micro_batch_size: int
    zero_stage: int
    recompute: Recompute | None
    sequence_parallel: bool
    step_seconds: float = 0.0
    peak_bytes: int | None = None
    simulated: bool = False
    refused: str = ""

    def tokens_per_second(self, tokens: int) -> float:
        """Of a step over `tokens` tokens, on all devices together."""
        return tokens / self.step_seconds if self.step_seconds else 0.0

    @property
    def flags(self) -> str:
        """The flags that ask for it."""
        parts = [
            f"--tensor-model-parallel-size {self.grid.tensor}",
            f"--pipeline-model-parallel-size {self.grid.pipe}",
            f"--micro-batch-size {self.micro_batch_size}",
            f"--zero-stage {self.zero_stage}",
        ]
        parts += [f"--recompute-granularity {self.recompute}"] if self.recompute else []
        parts += ["--sequence-parallel"] if self.sequence_parallel else []
        return " ".join(parts)


@dataclass(frozen=True)
class Found:
    """`ranked` fit, the fastest first; `refused` do not; `tokens` of a step."""

    ranked: tuple[Layout, ...]
    refused: tuple[Layout, ...]
    tokens: int


def search_layouts(
    config: Config,
    shape: ModelShape,
    *,
    devices: int,
    hardware: Hardware,
    memory_limit: int | None = None,
    top: int = 10,
) -> Found:
    """All layouts of `shape` on `devices`, for the configuration's batch, sequence and precision.

    PlanError for no device or without a global batch.
    """
    batch = config.training.global_batch_size
    if devices < 1:
        raise PlanError(f"gpus = {devices} leaves nothing to lay out; give 1 or more")
    if batch is None:
        raise PlanError("training.global_batch_size = None leaves open what a step is; give --global-batch-size")
    search = _Search(config, shape, devices, batch, hardware, memory_limit or hardware.memory_bytes)
    waiting: list[tuple[float, Layout, _Candidate]] = []
    refused: list[Layout] = []
    for layout in search.layouts():
        if layout.refused:
            refused.append(layout)
            continue
        candidate = search.candidate(layout)
        if fits(candidate.pieces, candidate.pipeline):
            waiting.append((candidate.bound, layout, candidate))
        else:
            refused.append(replace(layout, refused=candidate.why_overfull()))
    ranked = _rank(sorted(waiting, key=lambda entry: entry[0]), top)
    return Found(tuple(ranked), tuple(refused), batch * config.model.seq_length)


class _Candidate:
    """A layout's pieces and pipeline."""

    def __init__(self, setting: Setting, pieces: tuple[Piece, ...]) -> None:
        self.pipeline: Pipeline = setting.pipeline
        self.all = pieces
        self.pieces = Pieces(pieces)

    @property
    def bound(self) -> float:
        """Seconds below any cut: one micro-batch through all stages, or all through the slowest there has to be."""
        times = [piece.forward + piece.backward for piece in self.all]
        slowest = max(sum(times) / self.pipeline.num_stages, *times)
        return max(sum(times), self.pipeline.micro_batches * slowest) / TICKS_PER_SECOND

    def why_overfull(self) -> str:
        cut = lightest_cut(self.pieces, self.pipeline, precision=1 / 256)
        stage = max(
            range(self.pipeline.num_stages),
            key=lambda s: self.pieces.stage_bytes(s, cut.borders[s], cut.borders[s + 1], self.pipeline),
        )
        limit = self.pipeline.memory_limit or 0
        return f"stage {stage} needs {gibibytes(cut.peak_bytes)} of {gibibytes(limit)}"


def _rank(waiting: list[tuple[float, Layout, _Candidate]], top: int) -> list[Layout]:
    """Simulated times for the fastest `top` at the least; the others keep their bound."""
    simulated: list[Layout] = []
    bounded: list[Layout] = []
    for bound, layout, candidate in waiting:
        times = sorted(entry.step_seconds for entry in simulated)
        if len(times) >= top and bound > times[top - 1] * (1 + SAME_TIME):
            bounded.append(replace(layout, step_seconds=bound))
            continue
        cut = best_cut(candidate.all, candidate.pipeline, effort=SEARCH_EFFORT)
        seconds = cut.step_time / TICKS_PER_SECOND
        simulated.append(replace(layout, step_seconds=seconds, peak_bytes=cut.peak_bytes, simulated=True))
    return _lighter_first(simulated) + bounded


def _lighter_first(simulated: list[Layout]) -> list[Layout]:
    """The fastest first; of equally fast ones that with the smaller peak."""
    ordered = sorted(simulated, key=lambda layout: layout.step_seconds)
    places, first = [0] * len(ordered), 0
    for index, layout in enumerate(ordered):
        if layout.step_seconds > ordered[first].step_seconds * (1 + SAME_TIME):
            first = index
        places[index] = first
    pairs = sorted(zip(places, ordered, strict=True), key=lambda pair: (pair[0], pair[1].peak_bytes))
    return [layout for _, layout in pairs]


class _Search:
    def __init__(
        self, config: Config, shape: ModelShape, devices: int, batch: int, hardware: Hardware, memory_limit: int
    ) -> None:
        self.config, self.shape, self.devices, self.batch = config, shape, devices, batch
        self.hardware, self.memory_limit = hardware, memory_limit
        self.units: tuple[Unit, ...] = build_units(shape)

    def layouts(self) -> Iterator[Layout]:
        """Every layout; those that a rule refuses before any byte is counted carry it."""
        for tensor in _divisors(self.devices):
            rule = self._tensor_rule(tensor)
            for pipe in _divisors(self.devices // tensor):
                grid = Grid(pipe, self.devices // tensor // pipe, tensor)
                rule_here = rule or self._grid_rule(grid)
                if rule_here:
                    yield Layout(grid, 1, 1, None, False, refused=rule_here)
                    continue
                yield from self._variants(grid)

    def _variants(self, grid: Grid) -> Iterator[Layout]:
        share = self.batch // grid.data
        sequence = grid.tensor > 1 and self.config.model.seq_length % grid.tensor == 0
        zeros = range(int(self.config.training.bf16), 2 if grid.pipe > 1 else 4)
        size = 1
        while size <= min(share, LARGEST_MICRO_BATCH) and share % size == 0:
            for zero in zeros:
                for recompute in RECOMPUTES:
                    yield Layout(grid, size, zero, recompute, sequence)
            size *= 2

    def _tensor_rule(self, degree: int) -> str:
        if degree > self.hardware.devices_per_node:
            return f"{degree} tensor ranks leave a node of {self.hardware.devices_per_node}"
        if not is_divisible(self.shape, degree):
            return f"{degree} tensor ranks do not divide every head and width"
        return ""

    def _grid_rule(self, grid: Grid) -> str:
        if self.batch % grid.data:
            return f"{grid.data} data ranks do not divide the global batch of {self.batch}"
        glued = self.shape.tied_embeddings and self.config.training.bf16 and grid.tensor > 1  # see `plan.setting.glue`
        pieces = len(self.units) - (2 if glued else 1)
        if grid.pipe > pieces:
            return f"{grid.pipe} stages exceed the {pieces} pieces there are"
        return ""

    def candidate(self, layout: Layout) -> _Candidate:
        """What a layout comes to, in ticks and bytes."""
        grid, training = layout.grid, self.config.training
        setting = Setting(
            shape=self.shape,
            grid=grid,
            workload=Workload(
                seq_length=self.config.model.seq_length,
                micro_batch_size=layout.micro_batch_size,
                padded_vocab_size=padded_vocab_size(
                    self.shape.vocab_size, self.config.model.make_vocab_size_divisible_by, grid.tensor
                ),
                element_bytes=2 if training.bf16 else 4,
                tensor_degree=grid.tensor,
                sequence_parallel=layout.sequence_parallel,
                recompute=layout.recompute,
            ),
            micro_batches=self.batch // grid.data // layout.micro_batch_size,
            state=TrainingState(layout.zero_stage, grid.data, training.bf16, pipelined=grid.pipe > 1),
            hardware=self.hardware,
            memory_limit=self.memory_limit,
        )
        pieces = merge(self._pieces(setting), glue(self.units, setting))
        return _Candidate(setting, pieces)

    @staticmethod
    def _key(unit: Unit) -> tuple[str, int | None]:
        return unit.kind, unit.width

    def _pieces(self, setting: Setting) -> list[Piece]:
        """Each unit's piece; units of one kind and width are alike."""
        known: dict[tuple[str, int | None], Piece] = {}
        for unit in self.units:
            if self._key(unit) not in known:
                known[self._key(unit)] = setting.unit_piece(unit)
        return [known[self._key(unit)] for unit in self.units]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
