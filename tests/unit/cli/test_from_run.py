"""`plan --from-run`: a log folder as a run leaves it, set beside its plan, and refused where it says too little."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.config.dump import dump
from megatron_tlm.config.schema import Config, LoggingConfig, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.hardware import load_profile
from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds

CONFIG = Config(
    model=ModelConfig(num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=32, ffn_hidden_size=256),
    parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=0),
    training=TrainingConfig(global_batch_size=8, train_iters=100),
    logging=LoggingConfig(log_interval=5),
)
PLAN = build_plan(CONFIG, 1000, data=2)
UNITS = tuple(len(own) for own in PLAN.stages)
# The first stage takes far longer than planned.
TIMES = PipelineSeconds(
    5,
    4,
    0.8,
    (StageSeconds(0.01, 0.2, 0.5, 0.02, 0.07, 0.01, 0.02), StageSeconds(0, 0.1, 0.2, 0.02, 0.48, 0.01, 0.02)),
    UNITS,
)


def start(step: int = 0, pipe: int = 2) -> dict[str, Any]:
    layout = {"tensor": 1, "pipe": pipe, "data": 4 // pipe}
    return {"event": "start", "step": step, "layout": layout, "model": {"vocab_size": 1000}}


def step(number: int, seconds: float = 0.83, times: PipelineSeconds | None = None) -> dict[str, Any]:
    return {"step": number, "loss": 5.0, "seconds": seconds, **(times.scalars() if times else {})}


def write(folder: Path, records: list[dict[str, Any]], events: list[dict[str, Any]], config: Config = CONFIG) -> str:
    (folder / "config.yaml").write_text(dump(config))
    for name, lines in (("metrics.jsonl", records), ("events.jsonl", events)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut sho')
    return str(folder)


def usual(folder: Path) -> str:
    records = [step(1, 9.0), *(step(n, times=TIMES if n % 5 == 0 else None) for n in range(2, 16))]
    return write(folder, [*records, {"step": 15, "valid_loss": 4.0}], [start()])


def test_what_was_planned_beside_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--from-run", usual(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"run     {tmp_path}, steps 2 to 15, medians; tensor 1 x pipeline 2 x data 2" in out
    rows = [line.split() for line in out.splitlines() if line.strip()[:2] in ("0 ", "1 ")]
    assert [row[1] for row in rows] == ["embedding", PLAN.stage_units(1)[0].name]
    assert rows[0][3:6] == ["700", "ms", "70.0%"]
    assert f"({PLAN.stage_times[0].forward * 3 / sum(3 * t.forward for t in PLAN.stage_times):.1%})"[:3] in rows[0][6]
    assert "step 830 ms, 308 tokens/s measured; planned in FLOPs" in out
    assert "bubble 37.5% measured" in out
    assert "by the measured coefficients this cut is simulated to take" in out
    assert "Another cut would save" in out
    assert "  --pipeline-cuts layers." in out
    assert max(map(len, out.splitlines())) <= 120 + len(str(tmp_path))


def test_the_cut_it_proposes_can_be_given_to_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual(tmp_path)
    assert main(["plan", "--from-run", str(tmp_path), "--json", "--profile", str(tmp_path / "fit.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step_seconds"]["measured"] == 0.83
    assert told["step_seconds"]["planned"] is None
    assert told["step_seconds"]["fitted"] == pytest.approx(0.83, rel=0.2)
    assert told["bubble"]["measured"] == TIMES.mean_bubble
    assert [stage["measured"]["compute"] for stage in told["stages"]] == pytest.approx([0.7, 0.3])
    assert sum(stage["compute_share"]["planned"] for stage in told["stages"]) == pytest.approx(1)
    assert told["replan"]["saving"] > 0.01
    cuts = told["replan"]["first_units"][1:]
    flags = ["plan", "--config", str(tmp_path / "config.yaml"), "--vocab-size", "1000", "--world-size", "4", "--json"]
    by_profile = [*flags, "--hardware-profile", str(tmp_path / "fit.json")]
    for more in (["--pipeline-cuts", *cuts], []):
        assert main([*by_profile, *more]) == 0
        planned = json.loads(capsys.readouterr().out)
        assert [stage["first_unit"] for stage in planned["stages"]][1:] == cuts
        assert planned["step_seconds"] == pytest.approx(told["replan"]["step_seconds"])
    assert load_profile(tmp_path / "fit.json").notes == "fitted to 15 steps of a run, stage by stage"


def test_a_device_gives_the_plan_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--from-run", usual(tmp_path), "--hardware", "cpu"]) == 0
    assert "tokens/s measured; planned " in capsys.readouterr().out


def test_only_what_came_after_the_last_start_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(TIMES, seconds=99.0)
    records = [step(n, 99.0, slow) for n in range(1, 6)] + [step(6, 50.0), *(step(n, times=TIMES) for n in (7, 8, 9))]
    write(tmp_path, records, [start(), {"event": "resume", "step": 5}, start(5)])
    assert main(["plan", "--from-run", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == [7, 9]
    assert told["step_seconds"]["measured"] == 0.83


def test_one_stage_has_a_step_and_nothing_to_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, parallel=ParallelConfig())
    write(tmp_path, [step(n) for n in range(1, 4)], [start(pipe=1)], config)
    assert main(["plan", "--from-run", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "step 830 ms, 308 tokens/s measured" in out
    assert "compute" not in out
    assert main(["plan", "--from-run", str(tmp_path), "--json"]) == 0
    assert "replan" not in json.loads(capsys.readouterr().out)
    assert main(["plan", "--from-run", str(tmp_path), "--profile", str(tmp_path / "p.json")]) == 2
    assert "--profile = nothing to fit in a run of 1 stage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("records", "events", "message"),
    [
        ([step(1)], [start()], "metrics.jsonl has 1 steps since the run was started at step 0, 2 are needed"),
        ([step(1), step(2)], [start(1)], "has 1 steps since the run was started at step 1"),
        (
            [step(1) | {"step": "3"}, {"loss": 1.0, "seconds": 0.1}],
            [start()],
            "metrics.jsonl has 0 steps since the run",
        ),
        ([step(1), step(2)], [start()], "has 0 records of the stages' times since step 0; they come every 5 steps"),
        ([step(1), step(2)], [], "events.jsonl tells of 0 starts"),
        ([step(1), step(2)], [start() | {"layout": 3}], "events.jsonl has a start without step, layout or model"),
        ([step(1), step(2)], [start() | {"model": {}}], "events.jsonl has a start without step, layout or model"),
    ],
)
def test_a_run_that_says_too_little_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    records: list[dict[str, Any]],
    events: list[dict[str, Any]],
    message: str,
) -> None:
    assert main(["plan", "--from-run", write(tmp_path, records, events)]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--from-run", str(tmp_path)]) == 2
    assert f"--from-run = {tmp_path} holds no config.yaml, 1 of 3 files of a run" in capsys.readouterr().err


def test_another_layout_than_the_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["plan", "--from-run", usual(tmp_path), "--pipeline-model-parallel-size", "4"]
    assert main(flags) == 2
    assert "pipeline_model_parallel_size = 4 is not the 2 stages that the run measured" in capsys.readouterr().err
