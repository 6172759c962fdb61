"""The shipped configurations: complete, of the size their name says, and dividing over the layouts one tries first."""

import pytest

from megatron_tlm.config.document import preset_names, preset_variants, read_preset
from megatron_tlm.config.load import build
from megatron_tlm.config.schema import Config
from megatron_tlm.errors import ConfigError
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


# What match_params leaves: multiples of 32, and the small tensors that it does not count (persistent tokens, filters).
TOTALS = {"gated": (0.0015, 0.02), "hope": (0.0005, 0.002), "titans": (0.012, 0.2), "mag": (0.012, 0.25)}


def test_every_architecture_has_a_variant() -> None:
    assert set(preset_variants()) == {*TOTALS, "uniform"}


@pytest.mark.parametrize("variant", TOTALS)
@pytest.mark.parametrize("name", preset_names())
def test_every_architecture_has_the_same_budget_with_and_without_taper(name: str, variant: str) -> None:
    tapered, uniform = (preset(f"{name}-{variant}{ending}") for ending in ("", "-uniform"))
    vocab_size = tapered.model.vocab_size
    assert vocab_size is not None
    plans = [build_plan(config, vocab_size) for config in (tapered, uniform)]
    assert plans[0].parameters == plans[1].parameters
    assert plans[0].flops_per_token == plans[1].flops_per_token
    widths = plans[0].shape.widths
    assert len(set(plans[1].shape.widths)) == 1
    assert (widths[0], widths[-1]) == (plans[1].shape.widths[0] * 3 // 2, plans[1].shape.widths[0] // 2)
    near, tiny = TOTALS[variant]
    assert plans[0].parameters == pytest.approx(PARAMETERS[name], rel=tiny if name == "tiny" else near)


def test_matched_widths_are_the_specifications() -> None:
    widths = {
        name: build_plan(preset(f"{name}-uniform"), 32000).shape.widths[0]
        for name in ("440m-gated", "1.3b-gated", "760m-titans", "1.3b-titans")
    }
    assert widths == {"440m-gated": 3584, "1.3b-gated": 4960, "760m-titans": 3328, "1.3b-titans": 4608}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny-titan", "has no variant titan; did you mean titans"),
        ("tiny-gated-hope", "names 2 variants; give one architecture"),
        ("tiny-uniform-uniform", "names 2 variants"),
    ],
)
def test_a_variant_that_is_not_shipped_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_preset(name)


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "tiny"])
def test_the_large_presets_follow_the_paper(name: str) -> None:
    config = preset(name)
    assert config.training.global_batch_size is not None
    assert config.training.global_batch_size * config.model.seq_length == 2**19
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (4e-4, 0.1)
    assert (config.taper.taper_start, config.taper.taper_end) == (1.5, 0.5)
