"""`train`: what is checked and told before torch is imported, and what is handed on."""

import json
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from megatron_tlm.cli import train
from megatron_tlm.cli.main import main
from megatron_tlm.config.dump import parse
from megatron_tlm.config.megatron import IDLE
from megatron_tlm.config.schema import Config

STARTING = f"starting 1 rank on {socket.gethostname()}: importing torch and deepspeed\n"
RUN = ["train", "--preset", "tiny", "--mock-data"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that reach the training room, which is replaced."""
    reached: list[Config] = []
    room = ModuleType("megatron_tlm.train.train")
    room.train = lambda config, announce: announce() or reached.append(config) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron_tlm.train.train", room)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return reached


def test_the_configuration_and_the_plan_are_printed(trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--lr", "1e-3", "--num-workers", "2"]) == 0
    out, err = capsys.readouterr()
    assert trained[0].optimizer.lr == 1e-3
    told = out.split("\n\n")[0]
    assert parse(told) == trained[0]
    assert "clip_grad" not in told
    assert "--show-config prints every field" in told
    assert "slowest over mean" in out
    assert err == f"{STARTING}note: --num-workers has no effect: {IDLE['--num-workers']}\n"


def test_the_whole_configuration_is_printed_where_asked(
    trained: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--show-config"]) == 0
    told = capsys.readouterr().out.split("\n\n")[0]
    assert parse(told) == trained[0]
    assert "clip_grad: 1.0" in told
    assert main([*RUN, "--log-dir", "logs"]) == 0
    assert "logs/config.yaml has every field" in capsys.readouterr().out


SMALL = "train --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --vocab-size 50 --mock-data"


def test_a_taper_that_nobody_asked_for_is_told(trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL.split(), "--train-iters", "1"]
    assert main(words) == 0
    assert "note: MLP widths taper by default, cosine from 1.5 to 0.5 of their mean; give" in capsys.readouterr().err
    assert main([*words, "--taper-schedule", "uniform"]) == 0
    assert capsys.readouterr().err == STARTING


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "starting 2 of 4 ranks on "),
        ({"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, "starting 4 ranks on "),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, ""),
    ],
)
def test_a_node_says_that_it_starts_before_torch_is_imported(
    environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # Nothing can be imported under this name.
    monkeypatch.setitem(sys.modules, "megatron_tlm.train.train", None)
    with pytest.raises(ImportError):
        main(RUN)
    said = capsys.readouterr().err
    assert said.startswith(told) if told else not said
    assert not told or said.splitlines()[0].endswith(": importing torch and deepspeed")


def test_a_rank_is_bound_to_its_torchrun_before_it_imports_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes long enough for a torchrun to be killed meanwhile; its ranks would live on."""
    bound: list[bool] = []
    monkeypatch.setattr(train, "stop_with_launcher", lambda: bound.append(True))
    monkeypatch.setitem(sys.modules, "megatron_tlm.train.train", None)
    with pytest.raises(ImportError):
        main(RUN)
    assert bound == [True]


def test_a_run_that_ended_for_good_ends_again_at_once_and_in_silence(
    trained: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [tmp_path / f"attempt_{count}" / "0" / "error.json" for count in range(3)]
    mistake = [*RUN, "--global-batch-size", "3", "--micro-batch-size", "2"]
    for count, word in enumerate(words):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(count))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(word))
        assert main(mistake) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, "told by the first start alone"
    assert said[0].startswith("megatron-tlm: error: training.global_batch_size = 3 is not a multiple of")
    left = [json.loads(word.read_text())["message"]["message"] for word in words]
    assert left == [said[0].removeprefix("megatron-tlm: error: ")] * 3, "torchrun shows that of its last start"
    assert not trained


def test_sequence_parallelism_over_one_rank_is_told(trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--sequence-parallel", "--transformer-impl", "transformer_engine"]) == 0
    err = capsys.readouterr().err
    assert "note: --sequence-parallel has no effect: tensor_model_parallel_size = 1" in err
    assert "note: --transformer-impl has no effect: layers are this package's own" in err


def test_one_rank_speaks(
    trained: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(RUN) == 0
    assert len(trained) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("rank", "what"), [("abc", "'abc' is not a rank"), ("5", "5 is beyond the last")])
def test_a_rank_that_is_none_is_told(
    rank: str, what: str, trained: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    assert main(RUN) == 2
    assert not trained
    assert f"error: RANK = {what}" in capsys.readouterr().err


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
