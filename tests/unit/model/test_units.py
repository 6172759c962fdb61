from dataclasses import replace

import pytest
import torch

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.config.schema import Config, ModelConfig, ParallelConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.layers.residual import BlockOptions
from megatron_tlm.model.units import block_options, build_unit, global_name
from tests.tiny_model import tiny_plan

CPU = torch.device("cpu")


@pytest.mark.parametrize("query_groups", [8, 2, 1])
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_the_plans_by_name_and_local_shape(tied: bool, degree: int, query_groups: int) -> None:
    plan = tiny_plan(tensor=degree, tied=tied, query_groups=query_groups)
    for rank in range(degree):
        for unit in plan.units:
            module = build_unit(unit, plan, AxisGroup.pretend(degree, rank), torch.float32, CPU)
            shapes = {global_name(unit, name, plan.shape): tuple(p.shape) for name, p in module.named_parameters()}
            expected = {spec.name: plan.shard(spec, rank).local_shape for spec in unit.parameters}
            if unit.kind == "head" and tied:
                expected["embedding.weight"] = plan.shard(plan.parameter_specs["embedding.weight"], rank).local_shape
            assert shapes == expected
            for name, parameter in module.named_parameters():
                spec = plan.parameter_specs[global_name(unit, name, plan.shape)]
                assert hasattr(parameter, "tensor_model_parallel") == (spec.split_at(degree) is not None)


def test_every_unit_can_be_built_without_memory() -> None:
    plan = tiny_plan()
    for unit in plan.units:
        module = build_unit(unit, plan, AxisGroup.single(), torch.bfloat16, torch.device("meta"))
        assert {(p.device.type, p.dtype) for p in module.parameters()} == {("meta", torch.bfloat16)}


def test_a_tied_output_can_be_reached_by_its_nested_name() -> None:
    # DeepSpeed's TiedLayerSpec(tied_weight_attr="output.weight") resolves it with one getattr per part.
    plan = tiny_plan()
    head = build_unit(plan.units[-1], plan, AxisGroup.single(), torch.float32, CPU)
    assert isinstance(head.output.weight, torch.nn.Parameter)  # type: ignore[union-attr]


def test_a_mesh_of_another_degree_is_refused() -> None:
    plan = tiny_plan(tensor=2)
    with pytest.raises(PlanError, match="tensor axis = 1 ranks differs from the plan's tensor degree 2"):
        build_unit(plan.units[0], plan, AxisGroup.single(), torch.float32, CPU)


def test_an_unknown_mixer_is_refused() -> None:
    plan = tiny_plan()
    other = replace(plan, shape=replace(plan.shape, mixer="sorcery"))
    with pytest.raises(PlanError, match=r"shape\.mixer = sorcery is not among the 4 known"):
        build_unit(plan.units[1], other, AxisGroup.single(), torch.float32, CPU)


def test_an_mlp_without_width_is_refused() -> None:
    plan = tiny_plan()
    with pytest.raises(PlanError, match=r"layers\.0\.mlp\.width = None"):
        build_unit(replace(plan.units[2], width=None), plan, AxisGroup.single(), torch.float32, CPU)


def test_options_come_from_the_configuration() -> None:
    config = Config(
        ModelConfig(
            num_layers=1, hidden_size=8, num_attention_heads=2, seq_length=4, attention_dropout=0.1, hidden_dropout=0.2
        ),
        parallel=ParallelConfig(recompute_granularity="selective"),
    )
    assert block_options(config) == BlockOptions(0.2, 0.1, "selective")
