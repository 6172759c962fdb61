from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.config.document import preset_names, read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.compare import balanced_borders, layer_items, rivals, uniform_borders
from megatron_tlm.plan.pieces import Pieces

MODEL = ModelConfig(num_layers=10, hidden_size=64, num_attention_heads=4, seq_length=64, ffn_hidden_size=256)


def plan(stages, **model):
    return build_plan(
        Config(
            model=replace(MODEL, **model),
            parallel=ParallelConfig(pipeline_model_parallel_size=stages),
            training=TrainingConfig(global_batch_size=8),
        ),
        4000,
    )


@given(weights=st.lists(st.integers(0, 30), min_size=1, max_size=12), stages=st.integers(1, 13))
def test_borders_are_deepspeeds(weights, stages):
    utils = pytest.importorskip("deepspeed.runtime.utils")
    assert uniform_borders(len(weights), stages) == list(utils.partition_uniform(len(weights), stages))
    assert balanced_borders(weights, stages) == [int(border) for border in utils.partition_balanced(weights, stages)]


def test_the_balancer_evens_the_spread_not_the_slowest():
    assert balanced_borders([1, 4, 2, 2], 3) == [0, 2, 3, 4]


def test_items_are_whole_layers():
    assert layer_items(plan(2)) == [range(1), *(range(i, i + 2) for i in range(1, 21, 2)), range(21, 22)]


@pytest.mark.parametrize("stages", [2, 4, 5])
@pytest.mark.parametrize("untied", [True, False])
def test_ours_is_never_behind(stages, untied):
    found = rivals(plan(stages, untie_embeddings_and_output_weights=untied))
    *others, ours = found
    assert ours.name == "ours"
    for rival in others:
        if rival.plan is not None:
            assert [index for part in rival.plan.stages for index in part] == list(range(22))
            assert ours.step_time <= rival.step_time


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_ours_is_never_behind_on_a_preset(preset, stages):
    base = build([read_preset(preset)])
    compared = 0
    for vocabulary, length in product((32_000, 128_000), (2048, 4096, 8192)):
        config = replace(
            base,
            model=replace(base.model, seq_length=length, max_position_embeddings=None, vocab_size=vocabulary),
            parallel=replace(base.parallel, pipeline_model_parallel_size=stages, zero_stage=1),
        )
        plan = build_plan(config, vocabulary)
        cuts = [rival.plan.stages for rival in rivals(plan) if rival.plan is not None]
        borders = np.array([[0, *(own.stop for own in stages)] for stages in cuts])
        *others, ours = Pieces(plan.pieces).step_times(borders, plan.setting.pipeline)
        assert all(ours <= other for other in others)
        compared += len(others)
    # Of four layers and eight stages every rule leaves a stage empty.
    assert compared >= 12 or (preset, stages) == ("tiny", 8)


def test_rules_that_cannot_cut_say_why():
    reasons = {rival.name: rival.reason for rival in rivals(plan(4)) if rival.plan is None}
    assert reasons["Megatron equal layers"] == "10 layers are no multiple of 4 stages"
    reasons = {rival.name: rival.reason for rival in rivals(plan(13)) if rival.plan is None}
    assert "empty" in reasons["DeepSpeed type:transformer"]


def test_a_tied_head_counts_again():
    by_name = {rival.name: rival.plan for rival in rivals(plan(2))}
    untied = {rival.name: rival.plan for rival in rivals(plan(2, untie_embeddings_and_output_weights=True))}
    assert by_name["DeepSpeed parameters"].stages == untied["DeepSpeed parameters"].stages
