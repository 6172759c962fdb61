import pytest

from megatron_tlm.config.architecture import ArchitectureConfig
from megatron_tlm.config.check import check
from megatron_tlm.config.document import read_preset, read_text
from megatron_tlm.config.load import build
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.plan.build import build_plan


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mixer": "titans_lmm", "memory_persistent_tokens": 20},
            "20 is not a multiple of memory_chunk_size = 16.* give 32",
        ),
        ({"mixer": "titans_lmm", "qk_norm": True}, "qk_norm = true has no effect on titans_lmm"),
        ({"attention_gate": "headwise"}, "attention_gate = headwise finds no gate in mixer = attention"),
        (
            {"mixer": "gated_attention", "compile_memory": True},
            "compile_memory = true finds no memory in mixer = gated",
        ),
        ({"cms_update": "sum"}, "cms_update = sum finds no slow level in mixer = attention with cms_levels = 1"),
        ({"cms_levels": 0}, "cms_levels = 0 is below 1"),
        ({"cms_levels": 3, "cms_periods": (1, 2)}, "cms_periods = 1 2 are 2 for cms_levels = 3"),
        ({"cms_levels": 2, "cms_periods": (2, 1)}, "cms_periods = 2 1 do not rise from 1 on"),
        ({"cms_levels": 2, "cms_periods": (0, 1)}, "cms_periods = 0 1 do not rise from 1 on"),
        ({"cms_levels": 4}, "cms_levels = 4 has no default periods, 3 levels have; give --cms-periods"),
        (
            {"cms_levels": 2, "cms_periods": (1, 2), "cms_period_tokens": (9, 10)},
            "cms_periods = 1 2 and cms_period_tokens = 9 10 both set the periods",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ArchitectureConfig(**fields)


def test_periods_in_tokens_become_steps() -> None:
    tokens = ArchitectureConfig(cms_levels=3, cms_period_tokens=(16, 2**20, 2**24))
    assert tokens.periods(2**19) == (1, 2, 32)
    assert tokens.periods(2**20 + 5) == (1, 1, 16)
    assert ArchitectureConfig(cms_levels=3).periods(1) == (1, 2, 32)
    assert ArchitectureConfig().periods(1) == (1,)


def test_lists_of_integers_are_read_from_yaml_and_refused_where_they_are_not() -> None:
    text = "architecture:\n  cms_levels: 2\n  cms_periods: {}\n"
    config = build([read_preset("tiny"), read_text(text.format("[1, 5]"), "run.yaml")])
    assert config.architecture.cms_periods == (1, 5)
    with pytest.raises(ConfigError, match=r"run.yaml:3: architecture.cms_periods = 'often' is not a list of integers"):
        read_text(text.format("often"), "run.yaml")


def test_dropout_on_attention_that_is_not_there_is_refused() -> None:
    config = build([read_preset("tiny-titans"), read_text("model:\n  attention_dropout: 0.1\n", "run.yaml")])
    with pytest.raises(ConfigError, match=r"attention_dropout = 0.1 finds no attention .* titans_lmm"):
        check(config, 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "parallel:\n  tensor_model_parallel_size: 8\n",
            "tensor_model_parallel_size = 8 does not divide num_attention_heads = 4",
        ),
        ("model:\n  ffn_hidden_size: 128\n", "match_params = true leaves titans_lmm an MLP of 0"),
        (
            "architecture:\n  cms_levels: 60\n  cms_periods: [" + ", ".join(map(str, range(1, 61))) + "]\n",
            "cms_levels = 60 of at least 16",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(lines: str, message: str) -> None:
    config = build([read_preset("tiny-titans"), read_text(lines, "run.yaml")])
    with pytest.raises(PlanError, match=message):
        build_plan(config, 100)
