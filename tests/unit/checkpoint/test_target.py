"""A conversion cuts the model as training at that layout would, and gives every element to exactly one rank."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.checkpoint.manifest import Manifest, TensorRecord
from megatron_tlm.checkpoint.target import plan_target
from megatron_tlm.checkpoint.tiling import tiling_fault
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig
from megatron_tlm.plan.build import Plan, build_plan
from megatron_tlm.plan.units import build_units
from tests.unit.checkpoint.made import even_stages, facts, model_shape


def manifest(tied: bool) -> Manifest:
    shape = model_shape(tied=tied)
    specs = [spec for unit in build_units(shape) for spec in unit.parameters]
    tensors = {
        (spec.name, role): TensorRecord("F32", spec.shape, ()) for spec in specs for role in ("weight", "exp_avg")
    }
    return Manifest(facts(shape), 0, {}, None, tensors | {("embedding.weight", "count"): TensorRecord("I64", (), ())})


def training_plan(tied: bool, tensor: int, pipe: int) -> Plan:
    """The plan of a run with the facts of `made`."""
    shape = model_shape(tied=tied)
    model = ModelConfig(
        num_layers=3, hidden_size=8, num_attention_heads=4, seq_length=64, make_vocab_size_divisible_by=8
    )
    parallel = ParallelConfig(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipe)
    return build_plan(Config(model=model, parallel=parallel), shape.vocab_size, shape=shape)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("pipe", [1, 2, 3, 4])
def test_stages_and_shards_are_training_s_own(tied: bool, tensor: int, pipe: int) -> None:
    plan = training_plan(tied, tensor, pipe)
    target = plan_target(manifest(tied), "made", tensor=tensor, pipe=pipe, data=1, stages=plan.stages)
    assert target.facts.stages == plan.stages
    for rank, part in enumerate(target.parts):
        stage, tensor_rank = divmod(rank, tensor)
        own = {spec.name: spec for unit in plan.stage_units(stage) for spec in unit.parameters}
        for (name, role), (offset, size) in part:
            assert name in own
            if role != "count":
                held = plan.shard(own[name], tensor_rank)
                assert (offset, size) == (held.offset, held.size)


@given(
    tied=st.booleans(),
    tensor=st.sampled_from([1, 2, 4]),
    pipe=st.integers(1, 5),
    data=st.integers(1, 9),
)
def test_every_element_goes_to_one_rank(tied: bool, tensor: int, pipe: int, data: int) -> None:
    source = manifest(tied)
    stages = even_stages(8, pipe)
    target = plan_target(source, "made", tensor=tensor, pipe=pipe, data=data, stages=stages)
    assert len(target.parts) == tensor * pipe * data
    for key, record in source.tensors.items():
        boxes = [box for part in target.parts for other, box in part if other == key]
        assert tiling_fault(record.shape, boxes) is None


def test_zero_2_and_3_do_not_come_along_into_a_pipeline() -> None:
    source = manifest(False)
    assert plan_target(source, "made", tensor=1, pipe=1, zero=3, stages=even_stages(8, 1)).facts.zero_stage == 3
    assert plan_target(source, "made", tensor=1, pipe=2, zero=3, stages=even_stages(8, 2)).facts.zero_stage == 1


def test_stages_given_by_hand_do_not_outlive_their_number() -> None:
    source = manifest(True)
    parallel = {"pipeline_model_parallel_size": 2, "pipeline_cuts": ["layers.1.mlp"]}
    source = replace(source, facts=replace(source.facts, config={**source.facts.config, "parallel": parallel}))
    for pipe, cuts in ((2, ["layers.1.mlp"]), (3, [])):
        found = plan_target(source, "made", tensor=1, pipe=pipe, stages=even_stages(8, pipe)).facts.config["parallel"]
        assert found["pipeline_cuts"] == cuts
