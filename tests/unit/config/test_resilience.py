"""What stopping and bad steps can be asked for, and under whose names."""

from dataclasses import replace

import pytest

from megatron_tlm.config.check import check_training
from megatron_tlm.config.flags import add_config_flags, read_flags
from megatron_tlm.config.load import load
from megatron_tlm.config.parser import Parser
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig, ModelConfig, TrainingConfig
from megatron_tlm.errors import ConfigError

RUN = Config(
    ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32),
    training=TrainingConfig(train_iters=6),
    data=DataConfig(mock_data=True),
    resilience=ResilienceConfig(on_spike="rollback"),
)


def flags(*words: str) -> ResilienceConfig:
    parser = Parser(prog="megatron-tlm train")
    add_config_flags(parser)
    return load(read_flags(parser.parse_args(["--preset", "tiny", *words]))).resilience


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--exit-duration-in-mins", "230"), ResilienceConfig(exit_duration_in_mins=230)),
        (("--kill-switch-file", "x"), ResilienceConfig(stop_file="x")),
        (("--check-for-spiky-loss",), ResilienceConfig(on_spike="tell")),
        (("--check-for-large-grads",), ResilienceConfig(on_spike="tell")),
        (("--iterations-to-skip", "3", "5"), ResilienceConfig(iterations_to_skip=(3, 5))),
        (("--exit-signal-handler", "--exit-signal", "SIGUSR1"), ResilienceConfig()),
    ],
)
def test_megatrons_names_mean_ours(words: tuple[str, ...], meant: ResilienceConfig) -> None:
    assert flags(*words) == meant


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"exit_duration_in_mins": 0.0}, "resilience.exit_duration_in_mins = 0.0 is not above 0; give a positive"),
        ({"spike_sigmas": -1.0}, "resilience.spike_sigmas = -1.0 is not above 0"),
        ({"spike_window": 1}, "resilience.spike_window = 1 is below 2; give 2 or more"),
        ({"bad_step_limit": -1}, "resilience.bad_step_limit = -1 is below 0"),
        ({"iterations_to_skip": (3, 0)}, "resilience.iterations_to_skip = 0 is below 1, the first step's number"),
    ],
)
def test_values_that_cannot_be_meant(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ResilienceConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checkpoint", "sentence"),
    [
        (CheckpointConfig(), r"on_spike = rollback needs checkpoints to go back to and checkpoint.save is not given"),
        (
            CheckpointConfig(save="ck"),
            r"on_spike = rollback needs .* checkpoint.save_interval is not given; give --save",
        ),
        (
            CheckpointConfig(save="ck", save_interval=1, no_save_optim=True),
            r"on_spike = rollback needs whole checkpoints and checkpoint.no_save_optim = true keeps 0 of their moments",
        ),
    ],
)
def test_a_rollback_needs_something_to_go_back_to(checkpoint: CheckpointConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_training(replace(RUN, checkpoint=checkpoint), 1)
    assert check_training(replace(RUN, checkpoint=CheckpointConfig(save="ck", save_interval=1)), 1) == 1
