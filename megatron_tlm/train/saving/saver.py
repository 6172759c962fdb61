"""Checkpoints that are written while training goes on.

    main thread    begin  snapshot | step  step  step  step | poll: all wrote | step  step | poll: done
    writer thread                  | part-00003 ........... |                 | commit (rank 0)

The snapshot is a copy of what this rank stores, in host memory that is kept for the next one. What training waits for
is the snapshot alone; it is measured and told. Ranks agree after every step on how far all have come, so a writer that
failed on one ends the run on all.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from megatron_tlm.checkpoint.save import Piece, write_part
from megatron_tlm.comm.groups import Mesh, all_reduce_max
from megatron_tlm.config.schema import Config
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.plan.build import Plan
from megatron_tlm.train.engines.engine import Engine
from megatron_tlm.train.logs.events import Tell, tell_nobody
from megatron_tlm.train.saving.resume import Progress, begin_save, commit_save, drop_save, held_pieces, lock_saves
from megatron_tlm.train.survival.agree import agree

_WRITING, _WRITTEN, _COMMITTED = range(3)
_POLL_SECONDS = 0.01


class Saver(Protocol):
    """What the loop asks for; every call is collective. `saved_step` is that of the newest whole checkpoint."""

    saved_step: int

    def start(self, progress: Progress, *, last: bool) -> None:
        """Begins a save; when it is the `last`, training no longer changes what is saved, and it is finished too."""

    def poll(self) -> None:
        """How far the save has come, after a step. AgreedError where a rank could not write."""

    def finish(self) -> None:
        """Waits for what was begun."""

    def close(self) -> None:
        """Lets others save in the folder; on its own, and also after a fault."""


@dataclass
class _Pending:
    """A save under way: what this rank's writer does now, and how long training stood still for it."""

    progress: Progress
    partial: Path
    began: float
    stall_seconds: float
    job: "Future[Any]"
    committing: bool = False


class BackgroundSaver:
    """One save at a time; `say` and `event` hear of each that is done.

    With `async_save` off every save is finished at once. No other run can save in its folder until it is closed.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        plan: Plan,
        mesh: Mesh,
        tokenizer: Tokenizer | None,
        *,
        saved_step: int,
        say: Callable[[str], None],
        event: Tell = tell_nobody,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.saved_step = saved_step
        self._config, self._engine, self._plan, self._mesh = config, engine, plan, mesh
        self._tokenizer, self._say, self._event, self._alive = tokenizer, say, event, alive
        self._lock = lock_saves(config, mesh)
        self._pending: _Pending | None = None
        self._snapshot = Snapshot()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def start(self, progress: Progress, *, last: bool) -> None:
        began = time.perf_counter()
        self.finish()
        partial = begin_save(self._config, self._mesh, progress.step)
        pieces = held_pieces(self._config, self._engine, self._plan, self._mesh)
        if self._config.checkpoint.async_save and not last:
            pieces = self._snapshot.of(pieces)
        job = self._writer.submit(write_part, partial, self._mesh.rank, pieces)
        self._pending = _Pending(progress, partial, began, time.perf_counter() - began, job)
        if last or not self._config.checkpoint.async_save:
            self.finish()

    def poll(self) -> None:
        if self._pending is not None:
            self._advance(self._pending)

    def finish(self) -> None:
        pending = self._pending
        if pending is None:
            return
        start, stood_still = time.perf_counter(), pending.stall_seconds
        while self._pending is not None:
            time.sleep(_POLL_SECONDS)
            self._alive()
            pending.stall_seconds = stood_still + time.perf_counter() - start
            self._advance(pending)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _advance(self, pending: _Pending) -> None:
        """One agreement of all ranks on how far the save is."""
        job, first = pending.job, self._mesh.rank == 0
        failed = job.done() and job.exception() is not None
        stage = _COMMITTED if job.done() and (pending.committing or not first) else int(job.done())
        slowest, failures = all_reduce_max([-float(stage), float(failed)])
        if failures:
            self._pending = None
            wait([job])
            try:
                agree(job.result)
            finally:
                if first:
                    drop_save(pending.partial)
        if slowest == -_WRITTEN and first and not pending.committing:
            pending.job = self._writer.submit(self._commit, pending)
            pending.committing = True
        if slowest == -_COMMITTED:
            self._pending, self.saved_step = None, pending.progress.step
            if first:
                path, size_bytes = job.result()
                self._tell(path, size_bytes, pending)

    def _commit(self, pending: _Pending) -> tuple[Path, int]:
        """The checkpoint and its size in bytes."""
        final = commit_save(self._config, self._plan, pending.progress, pending.partial, self._tokenizer)
        return final, sum(file.stat().st_size for file in final.iterdir())

    def _tell(self, path: Path, size_bytes: int, pending: _Pending) -> None:
        seconds, stall = time.perf_counter() - pending.began, pending.stall_seconds
        self._say(f"saved {path} in {seconds:.1f} s, for {stall:.2f} s of which training stood still")
        facts = {"path": str(path), "seconds": round(seconds, 3), "stall_seconds": round(stall, 3)}
        self._event("checkpoint", pending.progress.step, **facts, bytes=size_bytes)


class Snapshot:
    """Copies of pieces in host memory. Buffers live on: allocating them anew costs as much as copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def of(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The same pieces, holding the values of now."""
        copies = []
        on_device = False
        for piece in pieces:
            values = piece.load()
            buffer = self._buffers.get(piece.entry.key)
            if buffer is None or buffer.shape != values.shape or buffer.dtype != values.dtype:
                buffer = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
                self._buffers[piece.entry.key] = buffer
            buffer.copy_(values, non_blocking=True)
            on_device |= values.is_cuda
            copies.append(replace(piece, load=lambda buffer=buffer: buffer))  # type: ignore[misc]
        if on_device:
            torch.cuda.current_stream().synchronize()
        return copies
