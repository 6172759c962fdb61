"""What may be asked of the logs together."""

import pytest

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"wandb_exp_name": "x"},
            r"logging.wandb_exp_name = x has no effect where wandb_project = none; give --wandb-project too",
        ),
        ({"wandb_project": "p"}, r"logging.wandb_project = p has no folder for its files; give --log-dir or --wandb-s"),
        ({"straggler_threshold": 0.5}, r"logging.straggler_threshold = 0.5 is below 1"),
        ({"straggler_minmax_count": -1}, r"logging.straggler_minmax_count = -1 is below 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoggingConfig(**fields)  # type: ignore[arg-type]


def test_files_of_wandb_lie_where_one_says_or_with_the_other_logs() -> None:
    assert LoggingConfig(wandb_project="p", wandb_save_dir="w", log_dir="l").wandb_folder == "w"
    assert LoggingConfig(wandb_project="p", log_dir="l", tensorboard_dir="t").wandb_folder == "l"
    assert LoggingConfig(wandb_project="p", tensorboard_dir="t").wandb_folder == "t"
