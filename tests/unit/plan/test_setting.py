from dataclasses import replace

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.hardware import Profile, UnitSeconds, find_hardware
from megatron_tlm.plan.pieces import Pieces
from megatron_tlm.plan.setting import glue, merge

MODEL = ModelConfig(num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=32, ffn_hidden_size=128)


def setting(data=1, hardware=None, **parallel):
    config = Config(
        model=MODEL, parallel=ParallelConfig(**parallel), training=TrainingConfig(global_batch_size=8 * data)
    )
    plan = build_plan(config, 1000, data=data, hardware=find_hardware(hardware) if hardware else None)
    return plan.setting, plan.units


def test_without_a_device_a_tick_is_a_flop_and_nothing_else_takes_time():
    known, units = setting(data=2, pipeline_model_parallel_size=2)
    piece = known.unit_piece(units[2])
    assert piece.forward == 32 * 6 * 64 * units[2].width
    assert piece.backward == 2 * piece.forward
    assert (piece.reduce, piece.update, known.pipeline.message, known.pipeline.tied) == (0, 0, 0, 0)
    assert known.seconds(5) is None


def test_with_a_device_a_tick_is_a_picosecond_and_everything_takes_time():
    known, units = setting(data=2, hardware="a100", pipeline_model_parallel_size=2)
    piece = known.unit_piece(units[2])
    assert piece.forward >= 32 * 6 * 64 * units[2].width / (19.5e12 * 0.5) * 1e12
    assert min(piece.reduce, piece.update, known.pipeline.message, known.pipeline.tied) > 0
    assert known.seconds(10**12) == 1.0


def test_up_to_zero_two_gradients_are_all_reduced_in_the_open():
    """2 (d - 1) / d of 4 bytes a parameter: once a step, with ZeRO 2 in every micro-batch."""
    pieces = []
    for zero in (0, 1, 2):
        known, units = setting(data=8, hardware="a100", zero_stage=zero)
        pieces.append(known.unit_piece(units[2]))
        around = 2 * 7 / 8 * 4 * known.local_parameters(units[2]) / 300e9 * 1e12
    none, one, two = pieces
    assert none.reduce == one.reduce == round(around)
    assert two.reduce == 0
    assert two.backward == pytest.approx(one.backward + around, abs=1)
    assert (two.forward, two.update) == (one.forward, one.update)


def test_alone_there_is_nothing_to_reduce():
    for zero in range(4):
        known, units = setting(hardware="a100", zero_stage=zero)
        assert known.unit_piece(units[2]).reduce == 0
        assert known.unit_piece(units[2]).backward == setting(hardware="a100")[0].unit_piece(units[2]).backward


def test_zero_three_hides_its_gathering_behind_the_work_where_it_can():
    slow = replace(find_hardware("a100"), link_bandwidth=1e6, network_bandwidth=1e6)
    known, units = setting(data=8, hardware="a100", zero_stage=3)
    fast = known.unit_piece(units[2])
    bound = replace(known, hardware=slow).unit_piece(units[2])
    assert bound.forward > fast.forward
    assert bound.forward == round(known.local_parameters(units[2]) * 4 * 7 / 8 / 1e6 * 1e12)


@pytest.mark.parametrize("tied", [True, False])
def test_memory_by_kind_adds_up_to_what_the_search_bounds(tied):
    model = replace(MODEL, untie_embeddings_and_output_weights=not tied)
    config = Config(
        model=model,
        parallel=ParallelConfig(pipeline_model_parallel_size=3, zero_stage=0),
        training=TrainingConfig(global_batch_size=8),
    )
    plan = build_plan(config, 1000)
    ranges = glue(plan.units, plan.setting)
    starts = [piece.start for piece in ranges]
    table = Pieces(merge(plan.pieces, ranges))
    borders = [*(starts.index(own.start) for own in plan.stages), len(ranges)]
    for stage, use in enumerate(plan.memory):
        assert use.total == table.stage_bytes(stage, borders[stage], borders[stage + 1], plan.setting.pipeline)
    copies = plan.padded_vocab_size * 64 if tied else 0
    held = sum(plan.setting.local_parameters(unit) for unit in plan.units)
    padding = (plan.padded_vocab_size - 1000) * 64 * (1 if tied else 2)
    assert held == plan.parameters + padding + copies


def test_a_profile_of_another_workload_is_refused():
    known, _ = setting()
    profile = Profile("here", 32, 1, 1, False, None, 64, (UnitSeconds("mlp", 128, 1.0, 2.0),))
    assert replace(known, profile=profile).in_seconds
    with pytest.raises(PlanError, match=r"profile\.seq_length = 16 is not this run's 32"):
        replace(known, profile=replace(profile, seq_length=16))
