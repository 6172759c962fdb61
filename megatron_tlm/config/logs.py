"""What a run tells, where and how often."""

from dataclasses import dataclass

from megatron_tlm.config.field import at_least, option
from megatron_tlm.errors import ConfigError


@dataclass(frozen=True)
class LoggingConfig:
    """Console, files, TensorBoard, Weights & Biases, signs of life."""

    log_interval: int = option(10, "steps between console lines")
    log_dir: str | None = option(
        None, "folder for metrics.jsonl, events.jsonl, config.yaml, the loss plot and what follows", metavar="DIR"
    )
    tensorboard_dir: str | None = option(
        None, "folder for TensorBoard files (default: log_dir/tensorboard)", metavar="DIR"
    )
    novelty_interval: int | None = option(
        None, "steps between measurements of layer-wise novelty, on validation samples (default: none)"
    )
    heartbeat_dir: str | None = option(
        None, "folder for a file per rank that says what it is at (default: log_dir/heartbeats)", metavar="DIR"
    )
    straggler_threshold: float = option(
        1.3, "name a rank on the console whose forward passes take more than this times the median of its stage"
    )
    straggler_minmax_count: int = option(3, "ranks to name, the slowest first; 0 names none")
    wandb_project: str | None = option(None, "log to this project of Weights & Biases too (default: not at all)")
    wandb_exp_name: str | None = option(None, "the run's name there (default: one that is made up)")
    wandb_entity: str | None = option(None, "user or team that the project belongs to (default: your own)")
    wandb_save_dir: str | None = option(
        None,
        "folder for its files, and for the id by which a resumed run goes on (default: log_dir, else tensorboard_dir)",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        at_least("logging", self, {"log_interval": 1, "novelty_interval": 1, "straggler_minmax_count": 0})
        at_least("logging", self, {"straggler_threshold": 1})
        for name in ("wandb_exp_name", "wandb_entity", "wandb_save_dir"):
            if getattr(self, name) and not self.wandb_project:
                raise ConfigError(
                    f"logging.{name} = {getattr(self, name)} has no effect where wandb_project = none; "
                    "give --wandb-project too"
                )
        if self.wandb_project and self.wandb_folder is None:
            raise ConfigError(
                f"logging.wandb_project = {self.wandb_project} has no folder for its files; give --log-dir or "
                "--wandb-save-dir"
            )

    @property
    def wandb_folder(self) -> str | None:
        return self.wandb_save_dir or self.log_dir or self.tensorboard_dir
