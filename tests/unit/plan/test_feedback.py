"""What a made-up run teaches: its own step back, another cut where one stage is slower than planned, refusals."""

from dataclasses import replace

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.feedback import compare, medians
from megatron_tlm.plan.hardware import Profile, UnitSeconds, load_profile
from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds

CONFIG = Config(
    model=ModelConfig(
        num_layers=6,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=32,
        ffn_hidden_size=256,
        untie_embeddings_and_output_weights=True,
    ),
    parallel=ParallelConfig(pipeline_model_parallel_size=3, zero_stage=0),
    training=TrainingConfig(global_batch_size=6),
)
PLAN = build_plan(CONFIG, 1000)
SPEED = 1e-9  # seconds per tick of the plan


def run_of(plan, scales, message=0.0, after=0.0):
    """The times of a run that is as planned, each stage times its scale, simulated; its step and what it measured."""
    units = []
    for own, scale in zip(plan.stages, scales, strict=True):
        for index in own:
            unit, piece = plan.units[index], plan.pieces[index]
            seconds = (SPEED * scale * piece.forward, SPEED * scale * piece.backward)
            units.append(UnitSeconds(unit.kind, unit.width, *seconds, unit.name))
    bandwidth = plan.setting.message_bytes / message if message else 0.0
    profile = Profile("made", 32, 1, 1, False, None, 64, tuple(units), message_bandwidth=bandwidth)
    timeline = replace(plan, setting=replace(plan.setting, profile=profile)).timeline
    seconds = timeline.pipeline_time / 1e12
    stages = []
    for stage in range(len(plan.stages)):
        taken = {
            kind: sum(e.end - e.start for e in timeline.stage_events(stage) if e.kind == kind) / 1e12
            for kind in ("forward", "backward")
        }
        moved = timeline.communication(stage) / 1e12
        rest = seconds - sum(taken.values()) - moved
        stages.append(StageSeconds(0.0, taken["forward"], taken["backward"], moved, rest, 0.0, after))
    units_of = tuple(len(own) for own in plan.stages)
    return PipelineSeconds(10, plan.micro_batches, seconds, tuple(stages), units_of), seconds + after


@pytest.mark.parametrize("scales", [(1, 1, 1), (1.3, 1, 0.8)])
def test_the_fitted_plan_takes_the_measured_step(scales):
    measured, step = run_of(PLAN, scales, message=1e-5, after=0.004)
    feedback = compare(PLAN, measured, step)
    assert feedback.fitted.step_seconds == pytest.approx(step, rel=1e-6)
    for stage in range(3):
        assert feedback.fitted.timeline.bubble(stage) == pytest.approx(measured.bubble(stage), rel=1e-6)
    assert feedback.fitted.setting.pipeline.message == pytest.approx(1e-5 * 1e12, rel=1e-6)


def test_a_run_as_planned_gives_the_planned_cut_again():
    measured, step = run_of(PLAN, (1, 1, 1))
    feedback = compare(PLAN, measured, step)
    assert feedback.best.stages == PLAN.stages
    assert feedback.saving == 0
    shares = [(feedback.planned_share(stage), feedback.measured_share(stage)) for stage in range(3)]
    assert all(planned == pytest.approx(found, rel=1e-6) for planned, found in shares)
    assert sum(planned for planned, _ in shares) == pytest.approx(1)


def test_a_stage_slower_than_planned_is_given_less():
    measured, step = run_of(PLAN, (2, 1, 1))
    feedback = compare(PLAN, measured, step)
    assert len(feedback.best.stages[0]) < len(PLAN.stages[0])
    assert feedback.saving > 0.05
    assert feedback.best.step_seconds < feedback.fitted.step_seconds
    assert feedback.best.cut.proven
    assert feedback.measured_share(0) > feedback.planned_share(0)


def test_a_cut_that_was_run_by_hand_is_what_is_compared():
    by_hand = PLAN.with_stages((range(2), range(2, 6), range(6, 14)))
    measured, step = run_of(by_hand, (1, 1, 1))
    feedback = compare(PLAN, measured, step)
    assert feedback.plan.stages == by_hand.stages
    assert feedback.best.stages == PLAN.stages


def test_the_coefficients_survive_their_file_and_make_the_same_plan(tmp_path):
    measured, step = run_of(PLAN, (2, 1, 1))
    feedback = compare(PLAN, measured, step)
    feedback.profile.save(tmp_path / "fit.json")
    assert load_profile(tmp_path / "fit.json") == feedback.profile
    config = replace(CONFIG, parallel=replace(CONFIG.parallel, hardware_profile=str(tmp_path / "fit.json")))
    assert build_plan(config, 1000).stages == feedback.best.stages


def test_a_stage_of_which_nothing_was_planned_is_shared_out_equally():
    pieces = [replace(piece, forward=0, backward=0) for piece in PLAN.pieces]
    free = replace(PLAN)
    free.__dict__["pieces"] = tuple(pieces)
    measured, step = run_of(PLAN, (1, 1, 1))
    feedback = compare(free, measured, step)
    object.__setattr__(feedback, "plan", free)
    forwards = {unit.forward for unit in feedback.profile.units[: len(PLAN.stages[0])]}
    assert len(forwards) == 1
    assert forwards.pop() * 6 * len(PLAN.stages[0]) == pytest.approx(measured.stages[0].forward)
    assert feedback.planned_share(0) == pytest.approx(1 / 3)


def test_medians_are_of_the_last_stages_alone():
    one, _ = run_of(PLAN, (1, 1, 1))
    slow = replace(one, seconds=9.0, stages=tuple(replace(taken, wait=9.0) for taken in one.stages))
    other = replace(one, units=(3, 4, 7), seconds=0.1)
    found = medians([other, one, slow, one])
    assert found == replace(one, steps=30)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"units": (7, 7)}, "pipeline_model_parallel_size = 3 is not the 2 stages that the run measured"),
        ({"units": (5, 5, 6)}, "the run = 16 units measured, the configuration has 14"),
        ({"micro_batches": 12}, "the run = 12 micro-batches a step, the configuration has 6"),
    ],
)
def test_another_run_than_the_configurations_is_refused(changes, message):
    measured, step = run_of(PLAN, (1, 1, 1))
    with pytest.raises(PlanError, match=message):
        compare(PLAN, replace(measured, **changes), step)
