"""A trained model from a checkpoint of any layout, with the tokenizer that was saved beside it: on one process, or
with its layers shared out over the ranks of a launch."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.comm.groups import Mesh, broadcast_object, build_mesh, single_mesh
from megatron_tlm.config.check import data_degree
from megatron_tlm.config.dump import from_mapping
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.schema import Config, ParallelConfig
from megatron_tlm.data.tokenizers import Tokenizer, load_tokenizer
from megatron_tlm.errors import CheckpointError, ConfigError
from megatron_tlm.evaluation.model import Model
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.train.survival.agree import agree

T = TypeVar("T")
ALONE = Launch(0, 1, 0)


@dataclass(frozen=True)
class Restored:
    """A model in evaluation mode, this rank's stage of it; `tokenizer` is None where the run had none (made-up data).

    On one process the stage is the whole model.
    """

    stage: Stage
    plan: Plan
    tokenizer: Tokenizer | None
    config: Config
    step: int
    path: Path
    mesh: Mesh = field(default_factory=single_mesh)
    tokenizer_file: Path | None = None

    @property
    def model(self) -> Model:
        return Model(self.stage, self.mesh)

    def together(self, action: Callable[[], T]) -> T:
        """This rank's result of `action`; collective, and a fault of one rank is every rank's."""
        return agree(action) if self.mesh.grid.size > 1 else action()

    def tokenizer_for(self, address: str, way_out: str) -> Tokenizer:
        """For what stands at `address`. ConfigError where the run had none; CheckpointError: one of another model."""
        if self.tokenizer is None:
            raise ConfigError(
                f"{address} cannot be read by {self.path}, which was trained without a tokenizer; {way_out}"
            )
        known, whole = self.tokenizer.vocab_size, self.plan.shape.vocab_size
        if known > whole:
            raise CheckpointError(
                f"{self.path}: the tokenizer has {known} ids but the model knows {whole}; "
                "put the one there that it was trained with"
            )
        return self.tokenizer

    def check_length(self, flag: str, length: int) -> None:
        """ConfigError for more tokens than the model was made for."""
        positions = self.config.model.positions
        if length > positions:
            raise ConfigError(
                f"{flag} = {length} exceeds the model's max_position_embeddings = {positions}; give {positions} or less"
            )


def load_model(
    load_dir: str | Path,
    step: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    *,
    tell: Callable[[str], None] = lambda sentence: None,
    hashes: bool = True,
    parallel: ParallelConfig | None = None,
    launch: Launch = ALONE,
) -> Restored:
    """The model that `load_dir` holds (its newest complete step by default), whatever layout saved it.

    Device: by default this process's GPU where there is one. Dtype: by default what it was trained in on a GPU,
    float32 on a CPU. `tell` hears which checkpoints were passed over, and why. CheckpointError: nothing to load.
    Every byte is read for `hashes` first; without, the files' lengths are looked at.
    With a `launch` of several ranks, whose process group stands, it is laid out by `parallel`; collective, and a fault
    of one rank is every rank's.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def together(action: Callable[[], T]) -> T:
        return agree(action) if launch.world_size > 1 else action()

    # One rank reads every byte, the others believe it.
    path = together(lambda: None if launch.rank else find(Path(load_dir), step, tell=tell, hashes=hashes))
    path = broadcast_object(path) if launch.world_size > 1 else path
    assert path is not None
    reader = together(lambda: Reader(path))
    with reader:
        config, plan = together(lambda: _decide(reader, parallel or ParallelConfig(), launch.world_size))
        mesh = build_mesh(plan.grid) if launch.world_size > 1 else single_mesh()
        stage = together(lambda: _build(reader, plan, mesh, dtype or _working_dtype(config, device), device))
        tokenizer = together(lambda: _saved_tokenizer(config, reader))
        return Restored(
            stage.eval(), plan, tokenizer, config, reader.manifest.facts.step, reader.path, mesh, reader.tokenizer
        )


def _decide(reader: Reader, parallel: ParallelConfig, world_size: int) -> tuple[Config, Plan]:
    """The run's configuration with its layout replaced, and the plan of that."""
    facts = reader.manifest.facts
    try:
        saved = from_mapping(dict(facts.config), "manifest.json")
    except ConfigError as error:
        raise CheckpointError(
            f"{reader.path}: the configuration it was saved with is not understood ({error}); "
            "use the version that saved it"
        ) from error
    config = replace(saved, parallel=parallel)
    degree = data_degree(config, world_size)
    # Batches are not the run's: they need not divide over these ranks.
    planned = replace(config, training=replace(config.training, micro_batch_size=1, global_batch_size=None))
    return config, build_plan(planned, facts.shape.vocab_size, data=degree, shape=facts.shape)


def _build(reader: Reader, plan: Plan, mesh: Mesh, dtype: torch.dtype, device: torch.device) -> Stage:
    """This rank's stage with its share of the saved weights."""
    stage = Stage(plan, mesh.coordinate.pipe, tensor=mesh.tensor, dtype=dtype, device=device)
    _fill(stage, plan, reader, mesh.tensor.rank)
    return stage


def _working_dtype(config: Config, device: torch.device) -> torch.dtype:
    """CPUs compute bfloat16 slowly; its values are float32 values, so there float32 is the same model."""
    return torch.bfloat16 if config.training.bf16 and device.type == "cuda" else torch.float32


def _fill(stage: Stage, plan: Plan, reader: Reader, tensor_rank: int) -> None:
    """Copy each weight into the leading corner of its parameter; what remains is padded vocabulary, which is zero."""
    with torch.no_grad():
        for name, parameter in stage.global_parameters().items():
            share = plan.shard(plan.parameter_specs[name], tensor_rank)
            corner = parameter.zero_()[tuple(slice(extent) for extent in share.size)]
            corner.copy_(reader.read(name, "weight", share.offset, share.size))


def _saved_tokenizer(config: Config, reader: Reader) -> Tokenizer | None:
    kind, file = config.data.tokenizer_type, reader.tokenizer
    return load_tokenizer(kind, file) if kind is not None or file is not None else None
