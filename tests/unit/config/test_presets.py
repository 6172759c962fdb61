"""The shipped configurations: complete, of the size their name says, and dividing over the layouts one tries first."""

import pytest

from megatron_tlm.config.document import preset_names, read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config
from megatron_tlm.plan.build import build_plan

PARAMETERS = {"tiny": 1_115_264, "440m": 438e6, "760m": 778e6, "1.3b": 1364e6, "3b": 3015e6}


def preset(name: str) -> Config:
    return build([read_preset(name)])


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_size_of_its_name(name: str) -> None:
    config = preset(name)
    assert config.model.vocab_size is not None
    plan = build_plan(config, config.model.vocab_size)
    assert plan.parameters == pytest.approx(PARAMETERS[name], rel=0.002)
    widths = plan.shape.widths
    assert sum(widths) == config.model.num_layers * config.model.baseline_width
    assert (widths[0], widths[-1]) == (config.model.baseline_width * 3 // 2, config.model.baseline_width // 2)


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "tiny"])
def test_the_large_presets_follow_the_paper(name: str) -> None:
    config = preset(name)
    assert config.training.global_batch_size is not None
    assert config.training.global_batch_size * config.model.seq_length == 2**19
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (4e-4, 0.1)
    assert (config.taper.taper_start, config.taper.taper_end) == (1.5, 0.5)
