"""Saving and resuming a run: the checkpoint room's steps, with the ranks in step between them."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from megatron_tlm.checkpoint.facts import Facts, Scalar
from megatron_tlm.checkpoint.load import Reader, check_hashes, find, require_shape
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.checkpoint.manifest import MANIFEST_NAME, read_manifest
from megatron_tlm.checkpoint.prune import prune
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.checkpoint.save import Piece, begin, commit
from megatron_tlm.comm.groups import Mesh, broadcast_object, gather_object
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import CheckpointConfig, Config
from megatron_tlm.data.tokenizer_files import META_FILE
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.engines.optimizer import run_periods
from megatron_tlm.train.saving.state import load_state, state_pieces
from megatron_tlm.train.survival.agree import agree


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Optimizer steps fall behind where a run was continued with fresh moments.

    `data` is what a checkpoint keeps of the data, for a resumed run to go on with the same.
    """

    step: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    optimizer_steps: int = 0
    data: Mapping[str, Scalar] = field(default_factory=dict)

    def after_step(self, samples: int, tokens: int) -> "Progress":
        return replace(
            self,
            step=self.step + 1,
            consumed_samples=self.consumed_samples + samples,
            consumed_tokens=self.consumed_tokens + tokens,
            optimizer_steps=self.optimizer_steps + 1,
        )

    def after_skip(self, samples: int) -> "Progress":
        """A step of the run whose samples nobody was trained on."""
        return replace(self, step=self.step + 1, consumed_samples=self.consumed_samples + samples)


_NONE: Mapping[Path, str] = MappingProxyType({})


def find_resume(config: CheckpointConfig, tell: list[str], damaged: Mapping[Path, str] = _NONE) -> Path | None:
    """The checkpoint that `load` means, None for a fresh start; what was passed over and why is added to `tell`.

    Lengths are looked at, and contents by `damage`, whose findings come back as `damaged`. CheckpointError where `load`
    holds none, unless `allow_fresh_start` says that this may be the first start.
    """
    if config.load is None:
        return None
    root = Path(config.load)
    fresh = config.allow_fresh_start and (root.is_dir() or not root.exists())
    if fresh and not _holds_steps(root):
        tell.append(f"{root} holds no checkpoint yet: starting from scratch")
        return None
    try:
        return find(root, config.ckpt_step, tell=tell.append, hashes=False, damaged=damaged)
    except CheckpointError as error:
        if config.allow_fresh_start or _holds_steps(root):
            raise
        raise CheckpointError(f"{error}; --allow-fresh-start starts from scratch where there is none") from error


def _holds_steps(root: Path) -> bool:
    return (root / MANIFEST_NAME).exists() or bool(step_directories(root))


def saved_facts(source: Path, plan: Plan) -> Facts:
    """What `source` says of itself; CheckpointError where it is a checkpoint of another model than the plan's."""
    manifest = read_manifest(source)
    require_shape(source, manifest, plan.shape)
    return manifest.facts


def damage(source: Path, rank: int, ranks: int) -> str | None:
    """Why `source` is not what was written, None where it is; collective: each file is read by one rank."""
    fault = None
    try:
        check_hashes(source, read_manifest(source), rank=rank, ranks=ranks)
    except CheckpointError as error:
        fault = str(error)
    return next((text for text in gather_object(fault) if text is not None), None)


def resume(config: Config, engine: Engine, plan: Plan, mesh: Mesh, source: Path) -> Progress:
    """Fills the engine from `source`, whatever layout saved it; collective. Returns how far that run had come."""
    wanted = config.checkpoint
    optimizer = not (wanted.no_load_optim or wanted.finetune)

    def load() -> Facts:
        with Reader(source) as reader:
            reader.require(plan.shape)
            if optimizer:
                check_windows(config, plan, reader.manifest.facts)
            load_state(engine, plan, mesh, config.parallel.zero_stage, reader, optimizer=optimizer)
            return reader.manifest.facts

    facts = agree(load)
    if wanted.finetune:
        return Progress()
    steps = facts.optimizer_steps if optimizer else 0
    return Progress(facts.step, facts.consumed_samples, facts.consumed_tokens, steps)


def begin_save(config: Config, mesh: Mesh, step: int) -> Path:
    """The directory that all ranks write their parts in; collective. AgreedError where rank 0 cannot make it."""
    root = save_root(config)
    partial = broadcast_object(agree(lambda: begin(root, step) if mesh.rank == 0 else None))
    if partial is None:
        raise CheckpointError(f"{root} = no folder begun by rank 0; save again")
    return partial


def drop_save(partial: Path) -> None:
    """Removes what a failed save wrote: on a full disk it would be in the way of everything else. On rank 0 alone."""
    shutil.rmtree(partial, ignore_errors=True)


def lock_saves(config: Config, mesh: Mesh) -> FolderLock | None:
    """The folder to save in is this run's as long as rank 0 keeps what it gets; collective. AgreedError: another's."""
    return agree(lambda: FolderLock(save_root(config)) if mesh.rank == 0 else None)


def held_pieces(config: Config, engine: Engine, plan: Plan, mesh: Mesh) -> list[Piece]:
    """What this rank writes: views of the live tensors."""
    optimizer = not config.checkpoint.no_save_optim
    return state_pieces(engine, plan, mesh, config.parallel.zero_stage, optimizer=optimizer)


def commit_save(config: Config, plan: Plan, progress: Progress, partial: Path, tokenizer: Tokenizer | None) -> Path:
    """Makes the parts that all ranks wrote a checkpoint, and deletes those that need not be kept; on rank 0 alone."""
    wanted = config.checkpoint
    with tokenizer_file(tokenizer) as file:
        final = commit(partial, _facts(config, plan, progress), parts=plan.grid.size, tokenizer=file)
    if wanted.keep_last is not None:
        prune(save_root(config), wanted.keep_last, every=wanted.keep_every)
    return final


def save_root(config: Config) -> Path:
    """Where a run saves."""
    if config.checkpoint.save is None:
        raise CheckpointError("checkpoint.save = None but 1 folder is needed to save; give --save DIR")
    return Path(config.checkpoint.save)


@contextmanager
def tokenizer_file(tokenizer: Tokenizer | None) -> Iterator[Path | None]:
    """The tokenizer's own file, for as long as it takes to copy it; None for one that is known by name alone."""
    if tokenizer is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as name:
        tokenizer.save_to(name)
        files = [path for path in Path(name).iterdir() if path.name != META_FILE]
        yield files[0] if files else None


def _facts(config: Config, plan: Plan, progress: Progress) -> Facts:
    return Facts(
        step=progress.step,
        consumed_samples=progress.consumed_samples,
        consumed_tokens=progress.consumed_tokens,
        optimizer_steps=progress.optimizer_steps,
        shape=plan.shape,
        config=as_mapping(config),
        grid=plan.grid,
        zero_stage=config.parallel.zero_stage,
        stages=plan.stages,
        extra={**_windows(config, plan), **progress.data},
    )


def check_windows(config: Config, plan: Plan, facts: Facts) -> None:
    """CheckpointError where open windows were gathered for other periods, or for another kind of update."""
    for name, ours in _windows(config, plan).items():
        saved = facts.extra.get(name, ours)
        if saved != ours:
            raise CheckpointError(
                f"{name} = {ours} differs from {saved}, by which the checkpoint's step {facts.step} gathered its "
                "windows; give the same, or --no-load-optim to start new ones"
            )


def _windows(config: Config, plan: Plan) -> dict[str, str]:
    """What the state of slow levels depends on, in steps, since a period in tokens follows the batch."""
    if plan.shape.cms_levels == 1:
        return {}
    periods = " ".join(map(str, run_periods(config, plan)))
    return {"cms_periods": periods, "cms_update": config.architecture.cms_update}
