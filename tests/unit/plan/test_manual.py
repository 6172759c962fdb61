from dataclasses import replace

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.manual import check_stages, stages_by_layer_counts, stages_by_layout, stages_by_name
from megatron_tlm.plan.setting import glue

MODEL = ModelConfig(num_layers=8, hidden_size=64, num_attention_heads=4, seq_length=32, ffn_hidden_size=128)
PLAN = build_plan(Config(model=MODEL, parallel=ParallelConfig(pipeline_model_parallel_size=4)), 1000)
UNITS = PLAN.units


def starts(stages):
    assert [index for part in stages for index in part] == list(range(len(UNITS)))
    return [UNITS[part.start].name for part in stages[1:]]


@pytest.mark.parametrize(
    ("stages", "first", "last", "begin"),
    [
        (4, None, None, [2, 4, 6]),
        (4, 3, 1, [3, 5, 7]),
        (3, 2, None, [2, 5]),
        (3, None, 4, [2, 4]),
        (2, 5, 3, [5]),
        (1, None, None, []),
    ],
)
def test_layer_counts(stages, first, last, begin):
    found = stages_by_layer_counts(UNITS, stages, first, last)
    assert starts(found) == [f"layers.{layer}.mixer" for layer in begin]


@pytest.mark.parametrize(
    ("stages", "first", "last", "message"),
    [
        (3, None, None, r"8 layers = 8 - 0 that cannot be shared evenly by 3 stages; leave 6 or 9"),
        (4, 3, None, r"5 layers = 8 - 3 that cannot be shared evenly by 3 stages; leave 3 or 6"),
        (4, 9, None, r"decoder_first_pipeline_num_layers = 9 is outside 1\.\.8"),
        (4, None, 0, r"decoder_last_pipeline_num_layers = 0 is outside 1\.\.8"),
        (1, 4, 4, r"name 2 stages of 1"),
        (1, None, 1, r"last_pipeline_num_layers = 1 leaves 7 of 8 layers without a stage, .* = 1; .* or leave it out"),
        (
            2,
            3,
            3,
            r"= 3 and decoder_last_pipeline_num_layers = 3 leave 2 of 8 layers without a stage, .* = 2; give more",
        ),
        (4, 4, 4, r"0 layers = 8 - 8 that cannot be shared evenly by 2 stages"),
    ],
)
def test_layer_counts_that_do_not_add_up(stages, first, last, message):
    with pytest.raises(PlanError, match=message):
        stages_by_layer_counts(UNITS, stages, first, last)


@pytest.mark.parametrize(
    ("layout", "begin"),
    [
        ("Ett|tt|tt|ttL", [2, 4, 6]),
        ("Et*3|t*2,|(t|)*1t*2L", [3, 5, 6]),
        ("E(t)*2|(tt|)*2ttL", [2, 4, 6]),
        ("Et | t*5 | t | tL", [1, 6, 7]),
    ],
)
def test_megatrons_layout(layout, begin):
    assert starts(stages_by_layout(UNITS, 4, layout)) == [f"layers.{layer}.mixer" for layer in begin]


def test_a_layout_may_leave_the_loss_alone():
    assert starts(stages_by_layout(UNITS, 2, "Et*8|L")) == ["head"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Ett|tt|tt|ttX", "holds X besides E, t, L"),
        ("Ett|tt|tt|ttmL", "holds m besides E, t, L"),
        ("Ett|tt|ttttL", "has 3 stages for pipeline_model_parallel_size = 4"),
        ("Ett|tt|tt|tL", "holds 1 E, 7 t, 1 L; write one E, then 8 t"),
        ("tt|tt|tt|ttEL", "write one E"),
        ("E(t*99999999999)|L", "repeats t 9999999999 times or more, beyond 100000 letters"),
        ("E((t*9999)*9999)|L", "repeats t+ 9999 times or more"),
        ("E(t)*" + "9" * 5000, "repeats t 9999999999 times"),
        ("Ett||tttt|ttL", "leaves stage 1 empty of 4"),
    ],
)
def test_layouts_that_are_not_the_model(layout, message):
    with pytest.raises(PlanError, match=message):
        stages_by_layout(UNITS, 4, layout)


def test_cuts_by_name():
    names = ["layers.1.mlp", "layers.4.mixer", "head"]
    assert starts(stages_by_name(UNITS, 4, names)) == names


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["head"], "1 names make 2 stages, not 4; give 3"),
        (["layers.1.mlp", "layers.9.mlp", "head"], r"'layers.9.mlp', which is none of the 18 units"),
        (["layers.3.mlp", "layers.1.mlp", "head"], "not in order at unit 4 after 8"),
        (["embedding", "layers.1.mlp", "head"], "not in order at unit 0 after 0"),
    ],
)
def test_names_that_are_not_the_model(names, message):
    with pytest.raises(PlanError, match=message):
        stages_by_name(UNITS, 4, names)


def test_what_deepspeed_could_not_run_is_refused():
    pieces = glue(UNITS, PLAN.setting)
    check_stages(stages_by_name(UNITS, 4, ["layers.1.mlp", "layers.4.mixer", "head"]), pieces, UNITS)
    with pytest.raises(PlanError, match=r"stage 1 = layers.0.mixer... parts embedding and layers.0.mixer"):
        check_stages(stages_by_layout(UNITS, 4, "E|tttt|tt|ttL"), pieces, UNITS)
    state = replace(PLAN.setting.state, bf16=True)
    grid = replace(PLAN.grid, tensor=2)
    with pytest.raises(PlanError, match=r"parts layers\.7\.mlp and head"):
        check_stages(
            stages_by_layout(UNITS, 4, "Etttt|tt|tt|L"),
            glue(UNITS, replace(PLAN.setting, state=state, grid=grid)),
            UNITS,
        )


def test_the_configuration_gives_one_way_or_none():
    def planned(**given):
        parallel = ParallelConfig(pipeline_model_parallel_size=4, **given)
        return build_plan(Config(model=MODEL, parallel=parallel), 1000)

    assert planned().cut is not None
    by_hand = planned(pipeline_cuts=("layers.1.mlp", "layers.4.mixer", "head"))
    assert by_hand.cut is None
    assert starts(by_hand.stages) == ["layers.1.mlp", "layers.4.mixer", "head"]
    assert (
        planned(decoder_first_pipeline_num_layers=2).stages
        == planned(pipeline_model_parallel_layout="Ett|tt|tt|ttL").stages
    )
    with pytest.raises(PlanError, match="pipeline_model_parallel_layout and pipeline_cuts both give"):
        planned(pipeline_model_parallel_layout="Ett|tt|tt|ttL", pipeline_cuts=("head",))
    with pytest.raises(
        PlanError,
        match=r"stage 0 = [\d.]+ [GM]iB a rank \(.* exceeds the memory limit of 0\.98 KiB; give it less by hand",
    ):
        planned(decoder_first_pipeline_num_layers=2, gpu_memory="1000")
