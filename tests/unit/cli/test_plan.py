"""`plan`: a table for people, JSON for programs, and every launch mistake before anything starts."""

import json
import re
from pathlib import Path

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.cli.plan_table import BAR_LENGTH, scaled
from megatron_tlm.config.dump import parse

STAGES = ["--preset", "tiny", "--pipeline-model-parallel-size", "2"]


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert set(plan) >= {
        "widths", "parameters", "flops_per_token", "units", "stages", "slowest", "mean", "imbalance",
    }  # fmt: skip
    assert all(set(unit) == {"name", "flops", "parameters", "activation_bytes"} for unit in plan["units"])
    assert all(set(stage) >= {"first_unit", "last_unit", "cost", "parameters"} for stage in plan["stages"])
    assert plan["widths"] == [576, 480, 288, 192]
    assert sum(stage["cost"] for stage in plan["stages"]) == plan["flops_per_token"]
    assert plan["slowest"] / plan["mean"] == plan["imbalance"]


def test_the_table_shows_widths_stages_and_imbalance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert "1,115,264 parameters" in text
    assert "cosine, 1.5 to 0.5 of the mean: widths 576 to 192, mean 384" in text
    bars = [line.count("█") for line in lines if line.startswith("layer ")]
    assert bars[0] == BAR_LENGTH
    assert bars == sorted(bars, reverse=True)
    assert [line.split()[0] for line in lines if " head " in line or "embedding" in line.split()[1:2]] == ["0", "1"]
    assert "slowest over mean 1." in text
    assert max(len(line) for line in lines if not line.endswith(".")) <= 120


def test_a_layer_that_two_stages_share_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--preset", "1.3b", "--pipeline-model-parallel-size", "4"]) == 0
    layer = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("layer 10 "))
    assert layer.endswith("1|2")


@pytest.mark.parametrize("schedule", ["uniform", "wider-late"])
def test_other_allocations_are_named(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--num-layers", "6", "--taper-schedule", schedule]) == 0
    assert f"taper   {schedule}: widths" in capsys.readouterr().out


def test_the_tokenizer_gives_the_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--vocab-size", "none", "--tokenizer-type", "ByteTokenizer"]) == 0
    assert "257 ids" in capsys.readouterr().out


def test_world_size_gives_the_data_degree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--world-size", "8"]) == 0
    assert "data 4, world size 8; 1 micro-batch of 4 a step" in capsys.readouterr().out


def test_a_file_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 32, vocab_size: 100}")
    assert main(["plan", "--config", str(path)]) == 0
    assert "2 layers of 64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--vocab-size none", "model.vocab_size is not given and no tokenizer is there to ask; give --tokenizer-model"),
        ("--vocab-size 99 --tokenizer-type ByteTokenizer", "vocab_size = 99 is below the 257 ids of the tokenizer"),
        ("--world-size 0", "--world-size = 0 is below 1; give 1 or more"),
        ("--world-size x", "--world-size = 'x' is not an integer"),
        ("--world-size 3", "world size = 3 is not a multiple of tensor x pipeline = 1 x 2 = 2; start 2 or 4 ranks"),
        ("--zero-stage 2", "zero_stage = 2 cannot be combined with pipeline_model_parallel_size = 2"),
        ("--tensor-model-parallel-size 3", "tensor_model_parallel_size = 3 does not divide"),
        ("--pipeline-model-parallel-size 64", "pipeline_model_parallel_size = 64 exceeds the"),
        ("--taper-start 1.51", "taper"),
    ],
)
def test_a_mistake_is_told(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, *flags.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_numbers_are_scaled() -> None:
    assert [scaled(v, "B") for v in (0, 999, 1000, 1_364_297_728)] == ["0 B", "999 B", "1.000 kB", "1.364 GB"]
    assert [scaled(v) for v in (5, 12_345)] == ["5", "12.345 k"]


def test_stages_show_time_and_memory_and_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--hardware", "a100", "--global-batch-size", "32"]) == 0
    out = capsys.readouterr().out
    assert "in flight    weights gradients optimizer activations   buffers  or after      peak" in out
    assert "predicted step" in out
    assert "tokens/s" in out
    assert "sets the pace with 1." in out
    assert "The search is complete: no cut that fits is better." in out
    assert main(["plan", *STAGES]) == 0
    assert "give --hardware or --hardware-profile for seconds" in capsys.readouterr().out


def test_the_activations_of_a_stage_are_shown_whenever_its_peak_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    for use in (stage["memory_bytes"] for stage in stages):
        assert use["activations"] > 2**20
        running = use["activations"] + use["working"] + use["messages"] + use["buffers"]
        assert use["total"] == use["weights"] + use["gradients"] + use["optimizer"] + max(running, use["after"])
    assert main(["plan", *STAGES]) == 0
    out = capsys.readouterr().out
    assert "MB" not in out
    assert " 0.00 " not in out


def test_a_pipeline_without_a_batch_is_planned_with_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--global-batch-size", "none", "--num-workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "8 micro-batches of 4 a step" in out
    assert "note: no --global-batch-size is given: planned with 32, 4 micro-batches a stage" in err
    assert "note: --num-workers has no effect: " in err
    assert main(["plan", "--preset", "tiny", "--global-batch-size", "none"]) == 0
    out, err = capsys.readouterr()
    assert "1 micro-batch of 4 a step" in out
    assert err == ""


def test_the_configuration_stands_above_the_plan_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--show-config"]) == 0
    assert parse(capsys.readouterr().out.split("\n\n")[0]).parallel.pipeline_model_parallel_size == 2
    assert main(["plan", *STAGES, "--show-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["optimizer"]["clip_grad"] == 1.0


def test_other_rules_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, "--compare"]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = {
        line[:28].strip(): line[43:52].strip() for line in lines if line.startswith(("DeepSpeed", "Megatron", "ours"))
    }
    assert len(steps) == 6
    assert steps["ours"] == "1.000"
    assert all(float(step) >= 1 for step in steps.values() if step != "-")
    assert main(["plan", *STAGES, "--compare", "--json"]) == 0
    assert [rule["rule"] for rule in json.loads(capsys.readouterr().out)["compare"]][-1] == "ours"


def test_every_layout_ranked_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "plan",
        "--preset",
        "440m",
        "--search",
        "--gpus",
        "8",
        "--gpu-memory",
        "16GiB",
        "--global-batch-size",
        "64",
    ]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 x h100, 16.00 GiB each")
    assert "refused:" in out
    assert "of 16.00 GiB" in out
    assert "assumed: ZeRO 0 and 1 reduce gradients once a step, 2 every micro-batch, unhidden; 3 talks" in out
    told, listed = out.split(" refused:\n")
    lines = listed.strip().splitlines()
    assert re.fullmatch(r" +and \d+ more; --json has all of them", lines[-1])
    others = re.findall(r" and (\d+) (?:others?:|more;)", listed)
    assert len(lines) - 1 + sum(map(int, others)) == int(told.splitlines()[-1])
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    times = [layout["step_seconds"] for layout in found["ranked"] if layout["simulated"]]
    assert times == pytest.approx(sorted(times), rel=1e-6)
    assert all(layout["refused"] for layout in found["refused"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--deepspeed-config", "nowhere.json"], "deepspeed_config = nowhere.json cannot be read (No such file"),
        (["--search"], "--search = true needs 1 device"),
        (
            ["--plot", "/nowhere/plan.png"],
            "--plot = /nowhere/plan.png cannot be written: there is no folder /nowhere; give a .png, .svg, .pdf",
        ),
        (
            ["--plot", "/tmp"],
            "--plot = /tmp cannot be written: it is a folder; give a .png, .svg, .pdf file in a folder that is there",
        ),
        (["--plot="], "--plot = (empty) cannot be written"),
        (
            ["--profile", "/nowhere/p.json"],
            "--profile = /nowhere/p.json cannot be written: there is no folder /nowhere; give a file",
        ),
        (["--gpus", "4"], "--gpus = 4 counts the devices to search layouts for; add --search, or give --world-size 4"),
        (["--search", "--gpus", "2", "--gpu-memory", "1MiB"], "--search = none of "),
        (["--plot", "plan.words"], "--plot = plan.words cannot be written"),
        (["--hardware", "abacus"], "hardware = 'abacus' is not among"),
        (["--gpu-memory", "1MiB"], "exceeds the memory limit of 1.00 MiB, even in the cut into 2 stages that needs"),
    ],
)
def test_mistakes_are_told(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *STAGES, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_plan_as_a_picture(tmp_path: Path) -> None:
    target = tmp_path / "plan.png"
    assert main(["plan", *STAGES, "--hardware", "h100", "--plot", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")


def test_units_are_measured_and_the_plan_uses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "profile.json")
    small = [*STAGES, "--micro-batch-size", "1", "--seq-length", "32"]
    assert main(["plan", *small, "--profile", target]) == 0
    out = capsys.readouterr().out
    assert "use it with --hardware-profile" in out
    assert re.search(r"^message +[\d.]+ [mun]?s \+ [\d.]+ [KMG]iB/s$", out, re.MULTILINE)
    profile = json.loads(Path(target).read_text())
    assert profile["message_bandwidth"] > 1e6, "two processes sent each other messages"
    assert main(["plan", *small, "--hardware-profile", target]) == 0
    out = capsys.readouterr().out
    assert "predicted step" in out
    assert "count as free" not in out
    Path(target).write_text(json.dumps(profile | {"message_latency": 0.0, "message_bandwidth": 0.0}))
    assert main(["plan", *small, "--hardware-profile", target]) == 0
    assert "Messages between stages count as free: the profile has none" in capsys.readouterr().out
    assert main(["plan", *STAGES, "--micro-batch-size", "2", "--hardware-profile", target]) == 2
    assert "plan --profile" in capsys.readouterr().err
