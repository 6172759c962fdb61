from dataclasses import replace

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TaperConfig, TrainingConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan, build_setting, build_shape
from megatron_tlm.plan.hardware import find_hardware
from megatron_tlm.plan.refusal import gibibytes, lightest_peak
from megatron_tlm.plan.setting import glue
from megatron_tlm.plan.shape import ModelShape

MODEL = ModelConfig(num_layers=6, hidden_size=64, num_attention_heads=4, seq_length=32, ffn_hidden_size=256)


def config(**sections):
    return Config(**({"model": MODEL} | sections))


def pipeline(stages, **model):
    parallel = ParallelConfig(pipeline_model_parallel_size=stages)
    training = TrainingConfig(global_batch_size=32)
    return build_plan(config(model=replace(MODEL, **model), parallel=parallel, training=training), 1000)


@pytest.mark.parametrize("untied", [True, False])
def test_taper_costs_nothing(untied):
    model = replace(MODEL, untie_embeddings_and_output_weights=untied)
    tapered = build_plan(config(model=model), 1000)
    uniform = build_plan(config(model=model, taper=TaperConfig(taper_schedule="uniform")), 1000)
    assert tapered.shape.widths != uniform.shape.widths
    assert tapered.parameters == uniform.parameters
    assert tapered.flops_per_token == uniform.flops_per_token


def test_parameters_by_hand():
    plan = build_plan(config(), 1000)
    attention, mlp, norms = 4 * 64 * 64, 3 * 64 * 256, 2 * 64
    assert plan.parameters == 6 * (attention + mlp + norms) + 64 + 64 * 1000
    assert sum(spec.size for spec in plan.parameter_specs.values()) == plan.parameters


def test_flops_by_hand():
    plan = build_plan(config(), 1000)
    forward = 6 * (8 * 64 * 64 + 4 * 32 * 64 + 6 * 64 * 256) + 2 * 64 * 1024
    assert plan.flops_per_token == 3 * forward


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("untied", [True, False])
def test_every_stage_owns_a_decayed_and_an_undecayed_parameter_of_its_own(stages, untied):
    plan = pipeline(stages, untie_embeddings_and_output_weights=untied)
    assert [index for part in plan.stages for index in part] == list(range(len(plan.units)))
    for stage in range(stages):
        decays = {spec.decay for unit in plan.stage_units(stage) for spec in unit.parameters}
        # The copy of a tied embedding is decayed, and belongs to the head without standing in the table.
        copy = {True} if stage == stages - 1 > 0 and not untied else set()
        assert decays | copy == {True, False}


def test_a_tied_head_stands_alone_only_where_each_rank_has_a_parameter_that_counts():
    def last_stage(**sections):
        asked = config(
            model=replace(MODEL, vocab_size=50000),
            parallel=ParallelConfig(pipeline_model_parallel_size=3, tensor_model_parallel_size=sections["tensor"]),
            training=TrainingConfig(global_batch_size=32, bf16=sections["bf16"]),
        )
        return [unit.kind for unit in build_plan(asked, 50000).stage_units(2)]

    assert last_stage(tensor=1, bf16=True) == ["head"]
    assert last_stage(tensor=2, bf16=False) == ["head"]
    assert last_stage(tensor=2, bf16=True) == ["mlp", "head"]


def test_stages_may_part_a_mixer_from_its_mlp():
    plan = pipeline(5)
    assert any(plan.stage_units(stage)[0].kind == "mlp" for stage in range(5))
    assert plan.slowest < 1.25 * plan.mean


def test_too_many_stages():
    with pytest.raises(PlanError, match="pipeline_model_parallel_size = 14 exceeds the 13 pieces that 14 units"):
        pipeline(14)


def test_json_has_the_promised_keys_and_adds_up():
    plan = pipeline(2)
    told = plan.to_json()
    assert set(told) >= {
        *("widths", "parameters", "flops_per_token", "units", "stages", "slowest", "mean", "imbalance")
    }
    assert set(told["units"][0]) == {"name", "flops", "parameters", "activation_bytes"}
    assert set(told["stages"][0]) >= {"first_unit", "last_unit", "cost", "parameters"}
    assert sum(stage["cost"] for stage in told["stages"]) == told["flops_per_token"]
    assert sum(stage["parameters"] for stage in told["stages"]) == told["parameters"]
    assert told["imbalance"] == max(stage["cost"] for stage in told["stages"]) / told["mean"]
    assert told["stages"][0]["first_unit"] == "embedding"
    assert told["stages"][-1]["last_unit"] == "head"


def test_widths_follow_the_tensor_degree():
    model = replace(MODEL, ffn_hidden_size=288, num_attention_heads=3, hidden_size=96)
    shape = build_shape(config(model=model, parallel=ParallelConfig(tensor_model_parallel_size=3)), 1000)
    assert all(width % 48 == 0 for width in shape.widths)


@pytest.mark.parametrize(
    ("model", "taper", "degree", "message"),
    [
        ({"num_attention_heads": 2}, {}, 8191, r"num_attention_heads = 2, num_query_groups = 2; use one of \[1, 2\]$"),
        ({"num_attention_heads": 2}, {}, 4, r"tensor_model_parallel_size = 4 .* num_attention_heads = 2.* \[1, 2\]"),
        (
            {"num_attention_heads": 12, "num_query_groups": 4, "hidden_size": 96, "ffn_hidden_size": 288},
            {},
            6,
            r"does not divide num_query_groups = 4; use one of \[1, 2, 4, 12\]",
        ),
        ({}, {"width_multiple": 2, "taper_start": 1.4921875, "taper_end": 0.5078125}, 4, "layer 0 width 382"),
    ],
)
def test_a_tensor_degree_that_does_not_divide_is_refused_with_what_would(model, taper, degree, message):
    asked = config(
        model=replace(MODEL, **model),
        taper=TaperConfig(**taper),
        parallel=ParallelConfig(tensor_model_parallel_size=degree),
    )
    with pytest.raises(PlanError, match=message):
        build_plan(asked, 1000)


def test_micro_batches():
    plan = build_plan(config(training=TrainingConfig(micro_batch_size=2, global_batch_size=16)), 1000, data=2)
    assert plan.micro_batches == 4


def test_shape_survives_json_and_names_differences():
    shape = build_shape(config(), 1000)
    assert ModelShape.from_json(shape.to_json()) == shape
    other = replace(shape, vocab_size=2000, rotary_base=5e5)
    assert shape.differences(other) == ("vocab_size = 1000 (not 2000)", "rotary_base = 10000.0 (not 500000.0)")
    with pytest.raises(PlanError, match="colour"):
        ModelShape.from_json(shape.to_json() | {"colour": 1})
    with pytest.raises(PlanError, match=r"widths holds 6 widths for num_layers = 7"):
        replace(shape, num_layers=7)


def test_the_plan_is_the_one_that_the_search_promised():
    plan = pipeline(4)
    assert plan.cut.proven
    assert plan.timeline.step_time == plan.cut.step_time
    assert max(use.total for use in plan.memory) == plan.cut.peak_bytes
    assert plan.with_stages([range(4), range(4, 8), range(8, 12), range(12, 14)]).cut is None
    assert plan.step_seconds is None


def test_seconds_where_the_device_is_known():
    asked = config(
        parallel=ParallelConfig(pipeline_model_parallel_size=2), training=TrainingConfig(global_batch_size=8)
    )
    plan = build_plan(asked, 1000, data=2, hardware=find_hardware("a100"))
    assert plan.step_seconds == plan.timeline.step_time / 1e12
    assert plan.tokens_per_second == 8 * 32 / plan.step_seconds
    assert plan.timeline.communication(0) > 0
    assert plan.timeline.pipeline_time < plan.timeline.step_time


def test_a_memory_limit_moves_the_cut_or_refuses_with_remedies():
    asked = config(
        model=replace(MODEL, seq_length=512),
        parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=0),
        training=TrainingConfig(micro_batch_size=2, global_batch_size=32),
    )
    free = build_plan(asked, 100)
    tight = build_plan(asked, 100, memory_limit=free.cut.peak_bytes)
    assert tight.stages == free.stages
    moved = build_plan(asked, 100, memory_limit=free.cut.peak_bytes - 1)
    assert moved.stages != free.stages
    assert max(use.total for use in moved.memory) < free.cut.peak_bytes
    with pytest.raises(
        PlanError,
        match=r"stage \d = [\d.]+ [GM]iB a rank \(weights .* MiB, .*activations .*\) exceeds the memory limit of 0\.98 "
        r"KiB, even in the cut into 2 stages that needs the least; combine what is not enough alone: "
        r".*--recompute-granularity full \([\d.]+ MiB\)",
    ):
        build_plan(asked, 100, memory_limit=1000)
    alone = replace(asked, parallel=replace(asked.parallel, pipeline_model_parallel_size=1))
    with pytest.raises(PlanError, match=r"exceeds the memory limit of 0\.98 KiB; combine what"):
        build_plan(alone, 100, memory_limit=1000)


def test_a_bound_one_byte_below_is_told_apart_from_what_is_needed():
    asked = config(parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=0))
    setting, units = build_setting(asked, 100), build_plan(asked, 100).units
    peak, _, _ = lightest_peak(setting, units, glue(units, setting))
    text = gibibytes(peak)
    with pytest.raises(
        PlanError, match=rf"= {text} \({peak} bytes\) a rank .* limit of {text} \({peak - 1} bytes\), even"
    ):
        build_plan(asked, 100, memory_limit=peak - 1)
    with pytest.raises(PlanError, match=r"; give --[a-z-]+ \w+ \([\d.]+ \w+\)"):
        build_plan(asked, 100, memory_limit=peak - 1)
