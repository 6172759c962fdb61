import time
from dataclasses import replace
from itertools import pairwise

import pytest

from megatron_tlm.config.load import build, read_preset
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.hardware import GIBIBYTE, find_hardware
from megatron_tlm.plan.resolve import build_shape
from megatron_tlm.plan.search import search_layouts

MODEL = ModelConfig(
    num_layers=6, hidden_size=1024, num_attention_heads=8, seq_length=1024, ffn_hidden_size=4096, vocab_size=32000
)
CONFIG = Config(model=MODEL, training=TrainingConfig(global_batch_size=32, bf16=True))
SHAPE = build_shape(CONFIG, 32000)
H100 = find_hardware("h100")


def search(devices=8, **options):
    return search_layouts(CONFIG, SHAPE, devices=devices, hardware=H100, **options)


def test_every_layout_is_ranked_or_refused_once():
    found = search()
    both = [*found.ranked, *found.refused]
    assert len({layout.flags for layout in both}) == len(both)
    assert all(layout.grid.size == 8 for layout in both)
    assert {layout.grid.tensor for layout in found.ranked} == {1, 2, 4, 8}
    assert found.tokens == 32 * 1024


def test_the_times_are_those_of_the_plans():
    for layout in search().ranked[:10]:
        parallel = ParallelConfig(
            tensor_model_parallel_size=layout.grid.tensor,
            pipeline_model_parallel_size=layout.grid.pipe,
            sequence_parallel=layout.sequence_parallel,
            zero_stage=layout.zero_stage,
            recompute_granularity=layout.recompute,
        )
        training = replace(CONFIG.training, micro_batch_size=layout.micro_batch_size)
        asked = replace(CONFIG, parallel=parallel, training=training)
        plan = build_plan(asked, 32000, data=layout.grid.data, shape=SHAPE, hardware=H100)
        assert layout.simulated
        assert layout.step_seconds == pytest.approx(plan.step_seconds)


def test_ranked_by_time_and_what_was_not_simulated_is_behind():
    found = search(top=5)
    simulated = [layout.step_seconds for layout in found.ranked if layout.simulated]
    assert simulated == pytest.approx(sorted(simulated), rel=1e-6)
    assert all(layout.step_seconds > simulated[4] for layout in found.ranked if not layout.simulated)
    everything = search(top=10**6)
    assert all(layout.simulated for layout in everything.ranked)
    best = [layout.flags for layout in everything.ranked[:5]]
    assert [layout.flags for layout in found.ranked[:5]] == best


def test_of_equally_fast_layouts_the_lighter_one_is_first():
    ranked = [layout for layout in search(top=10**6).ranked if layout.simulated]
    equal = [(a, b) for a, b in pairwise(ranked) if b.step_seconds == pytest.approx(a.step_seconds, rel=1e-7)]
    assert any(a.step_seconds != b.step_seconds for a, b in equal), "rounding alone sets some apart"
    assert all(a.peak_bytes <= b.peak_bytes for a, b in equal)


def test_zero_two_is_never_ahead_of_one_and_three_only_where_it_hides_its_traffic():
    times = {
        (layout.micro_batch_size, layout.zero_stage): layout.step_seconds
        for layout in search(top=10**6).ranked
        if layout.grid.data == 8 and layout.recompute is None
    }
    assert times[4, 2] == pytest.approx(times[4, 1], rel=1e-6), "one micro-batch a step"
    assert times[2, 2] > times[2, 1]
    assert times[1, 2] > times[2, 2]
    assert times[4, 3] < times[4, 1], "hidden"
    slow = replace(H100, link_bandwidth=H100.link_bandwidth / 50)
    starved = search_layouts(CONFIG, SHAPE, devices=8, hardware=slow, top=10**6).ranked
    shown = {(x.micro_batch_size, x.zero_stage): x for x in starved if x.grid.data == 8 and x.recompute is None}
    assert shown[1, 3].step_seconds > shown[1, 1].step_seconds, "more traffic than there is work to hide it"


def test_memory_refuses_with_the_stage_and_the_bytes():
    found = search(memory_limit=2 * GIBIBYTE)
    overfull = [layout for layout in found.refused if "needs" in layout.refused]
    assert overfull
    for layout in overfull:
        assert layout.refused.startswith("stage ")
        assert layout.refused.endswith("of 2.00 GiB")
    assert all(layout.peak_bytes <= 2 * GIBIBYTE for layout in found.ranked if layout.simulated)


def test_rules_refuse_by_name():
    reasons = {layout.refused for layout in search(devices=48).refused}
    assert "3 tensor ranks do not divide every head and width" in reasons
    assert "16 tensor ranks leave a node of 8" in reasons
    assert "24 stages exceed the 13 pieces there are" in reasons
    assert "3 data ranks do not divide the global batch of 32" in reasons


def test_what_cannot_be_searched():
    with pytest.raises(PlanError, match="gpus = 0 leaves nothing"):
        search(devices=0)
    with pytest.raises(PlanError, match="global_batch_size = None leaves open"):
        search_layouts(Config(model=MODEL), SHAPE, devices=8, hardware=H100)


def test_512_devices_take_a_few_seconds():
    config = build([read_preset("3b")])
    config = replace(config, training=replace(config.training, global_batch_size=512))
    start = time.process_time()
    found = search_layouts(config, build_shape(config, 32000), devices=512, hardware=H100)
    assert time.process_time() - start < 10
    assert len(found.ranked) > 100
