"""`train`: what is checked and told before torch is imported, and what is handed on."""

import sys
from types import ModuleType

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.config.dump import parse
from megatron_tlm.config.schema import Config

RUN = ["train", "--preset", "tiny", "--mock-data"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that reach the training room, which is replaced."""
    reached: list[Config] = []
    room = ModuleType("megatron_tlm.train.train")
    room.train = lambda config: reached.append(config) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron_tlm.train.train", room)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return reached


def test_the_configuration_and_the_plan_are_printed(trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--lr", "1e-3", "--num-workers", "2"]) == 0
    out, err = capsys.readouterr()
    assert trained[0].optimizer.lr == 1e-3
    assert parse(out.split("\n\n")[0]) == trained[0]
    assert "slowest over mean" in out
    assert err == "note: --num-workers has no effect: batches are read ahead by a thread of the training process\n"


def test_one_rank_speaks(
    trained: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(RUN) == 0
    assert len(trained) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("world_size", "flags", "message"),
    [
        ("3", "", "global_batch_size = 16 is not a multiple of micro_batch_size x data degree = 4 x 3 = 12"),
        ("2", "--tensor-model-parallel-size 4", "world size = 2 is not a multiple of tensor x pipeline = 4 x 1 = 4"),
        ("many", "", "WORLD_SIZE = 'many' is not a number of ranks"),
        ("1", "--train-iters none", "training.train_iters is not given and a run needs a length"),
        ("1", "--no-mock-data", "data.data_path is not given; give --data-path"),
        ("4", "--pipeline-model-parallel-size 2 --zero-stage 3", "zero_stage = 3 cannot be combined"),
    ],
)
def test_a_launch_mistake_is_told_before_training(
    world_size: str,
    flags: str,
    message: str,
    trained: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world_size)
    assert main([*RUN, *flags.split()]) == 2
    assert not trained
    assert message in capsys.readouterr().err
