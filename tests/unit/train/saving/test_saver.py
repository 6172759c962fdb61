"""A save beside training: values of its moment, one at a time, faults at the next step; with tensors for an engine."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.checkpoint.save import Piece, write_part
from megatron_tlm.comm.groups import single_mesh
from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.train.saving import saver as saver_module
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.saving.saver import BackgroundSaver, Snapshot
from megatron_tlm.train.survival.agree import AgreedError

CONFIG = Config(ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32))
PLAN = build_plan(CONFIG, 32)


class Trainer:
    """Tensors that "train" by growing, a saver of them, and a gate that holds the writer back."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **checkpoint: Any) -> None:
        self.tensors = {name: torch.zeros(spec.shape) for name, spec in PLAN.parameter_specs.items()}
        self.gate = threading.Event()
        self.said: list[str] = []
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.fault: Exception | None = None
        config = replace(CONFIG, checkpoint=CheckpointConfig(save=str(root), **checkpoint))
        patch.setattr(saver_module, "held_pieces", lambda *_: [piece(name, t) for name, t in self.tensors.items()])
        patch.setattr(saver_module, "write_part", self.write_part)
        self.saver = BackgroundSaver(
            config,
            None,  # type: ignore[arg-type]
            PLAN,
            single_mesh(),
            None,
            saved_step=0,
            say=self.said.append,
            event=lambda kind, step, **facts: self.events.append((kind, step, facts)),
        )

    def write_part(self, *args: Any) -> Any:
        assert self.gate.wait(10)
        if self.fault is not None:
            raise self.fault
        return write_part(*args)

    def step(self) -> None:
        for tensor in self.tensors.values():
            tensor += 1


def piece(name: str, tensor: Tensor) -> Piece:
    shape = tuple(tensor.shape)
    return Piece(name, "weight", shape, (0,) * len(shape), shape, tensor.dtype, lambda: tensor)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    return Trainer(tmp_path / "ck", monkeypatch)


def saved_value(root: Path) -> tuple[int, float]:
    with Reader(find(root)) as reader:
        values = {reader.read(name, "weight").unique().item() for name in PLAN.parameter_specs}
        assert len(values) == 1
        return reader.manifest.facts.step, values.pop()


def test_what_is_saved_is_what_was_at_the_start(trainer: Trainer, tmp_path: Path) -> None:
    trainer.step()
    trainer.saver.start(Progress(step=1), last=False)
    for _ in range(3):
        trainer.step()
        trainer.saver.poll()
    assert trainer.saver.saved_step == 0
    assert not (tmp_path / "ck" / "latest").exists()
    trainer.gate.set()
    trainer.saver.finish()
    assert trainer.saver.saved_step == 1
    assert saved_value(tmp_path / "ck") == (1, 1.0)
    assert trainer.said[0].startswith(f"saved {tmp_path / 'ck' / 'step-00000001'} in ")
    assert "training stood still" in trainer.said[0]
    [(kind, step, facts)] = trainer.events
    assert (kind, step, facts["path"]) == ("checkpoint", 1, str(tmp_path / "ck" / "step-00000001"))
    assert facts["bytes"] == sum(file.stat().st_size for file in Path(facts["path"]).iterdir())
    assert 0 <= facts["stall_seconds"] <= facts["seconds"]


def test_polling_alone_brings_it_to_its_end(trainer: Trainer, tmp_path: Path) -> None:
    trainer.gate.set()
    trainer.saver.start(Progress(step=4), last=False)
    for _ in range(1000):
        trainer.saver.poll()
        if trainer.said:
            break
        threading.Event().wait(0.01)
    assert trainer.saver.saved_step == 4
    assert saved_value(tmp_path / "ck") == (4, 0.0)


def test_the_next_save_waits_for_the_one_before(trainer: Trainer, tmp_path: Path) -> None:
    trainer.saver.start(Progress(step=1), last=False)
    trainer.step()
    threading.Timer(0.1, trainer.gate.set).start()
    trainer.saver.start(Progress(step=2), last=False)
    assert trainer.saver.saved_step == 1
    trainer.saver.finish()
    assert saved_value(tmp_path / "ck") == (2, 1.0)
    assert len(trainer.said) == 2


@pytest.mark.parametrize(("last", "options"), [(True, {}), (False, {"async_save": False})])
def test_the_last_one_and_those_that_may_not_run_beside_are_done_at_once_without_a_copy(
    last: bool, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(tmp_path / "ck", monkeypatch, **options)
    monkeypatch.setattr(Snapshot, "of", lambda *_: pytest.fail("a copy nobody needs"))
    trainer.gate.set()
    trainer.saver.start(Progress(step=3), last=last)
    assert trainer.saver.saved_step == 3
    assert saved_value(tmp_path / "ck") == (3, 0.0)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device", "x"), CheckpointError("x = full; make room")])
def test_a_writer_that_failed_is_told_at_the_next_step(trainer: Trainer, fault: Exception) -> None:
    trainer.fault = fault
    trainer.saver.start(Progress(step=1), last=False)
    trainer.saver.poll()
    trainer.gate.set()
    with pytest.raises(AgreedError, match=r"x = "):
        trainer.saver.finish()
    assert trainer.saver.saved_step == 0
    trainer.saver.finish()  # nothing is left to wait for


def test_what_a_failed_save_wrote_is_removed(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a part is on the full disk when the write fails; the checkpoint before stays."""
    trainer.gate.set()
    trainer.saver.start(Progress(step=1), last=True)

    def fill(partial: Path, *_: Any) -> None:
        (partial / "part-00000.safetensors").write_bytes(bytes(1000))
        raise CheckpointError(f"{partial} = No space left on device; make room there or save elsewhere")

    monkeypatch.setattr(saver_module, "write_part", fill)
    with pytest.raises(AgreedError, match="No space left"):
        trainer.saver.start(Progress(step=2), last=True)
    assert not list((tmp_path / "ck").glob(".step-*"))
    assert saved_value(tmp_path / "ck")[0] == 1


def test_two_runs_do_not_save_in_one_folder(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgreedError, match="ck is held by another run; wait for it or save to another folder"):
        Trainer(tmp_path / "ck", monkeypatch)
    Trainer(tmp_path / "other", monkeypatch)
    trainer.saver.close()
    Trainer(tmp_path / "ck", monkeypatch)


def test_a_fault_of_the_program_is_not_taken_for_the_user_s(trainer: Trainer) -> None:
    trainer.fault = ZeroDivisionError("made to fail")
    trainer.gate.set()
    trainer.saver.start(Progress(step=1), last=False)
    with pytest.raises(ZeroDivisionError):
        trainer.saver.finish()


def test_old_ones_go_once_the_new_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tmp_path / "ck", monkeypatch, keep_last=1, keep_every=4)
    trainer.gate.set()
    for step in (2, 4, 6, 7):
        trainer.saver.start(Progress(step=step), last=False)
    trainer.saver.finish()
    assert sorted(path.name for path in (tmp_path / "ck").glob("step-*")) == ["step-00000004", "step-00000007"]


def test_a_snapshot_keeps_its_memory() -> None:
    snapshot, tensor = Snapshot(), torch.arange(6.0).view(2, 3)
    (first,) = snapshot.of([piece("a", tensor)])
    memory = first.load().data_ptr()
    tensor += 1
    assert first.load()[0, 0] == 0
    (second,) = snapshot.of([piece("a", tensor)])
    assert torch.equal(second.load(), tensor)
    assert second.load().data_ptr() == memory
