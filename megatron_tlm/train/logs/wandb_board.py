"""Weights & Biases: the scalars that TensorBoard gets, and the configuration, in a run of theirs.

Everything else is theirs too: who you are (`wandb login`, WANDB_API_KEY), and whether anything leaves the machine
(WANDB_MODE=offline). Nothing of it is logged here. The run's id lies beside its files, for a resumed run to go on with.
Steps are a figure called `iteration`: a run that goes back to an older step may say it again.
"""

import importlib
import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_tlm.config.schema import LoggingConfig
from megatron_tlm.errors import ConfigError

RUN_ID_NAME = "wandb-run-id"
STEP = "iteration"


def require_wandb(config: LoggingConfig) -> None:
    """ConfigError where a project is given and the package is not there."""
    if not config.wandb_project:
        return
    found = importlib.util.find_spec("wandb")
    # A folder of that name, as every run leaves one behind, is no package.
    if found is None or found.origin is None:
        raise ConfigError(
            f"logging.wandb_project = {config.wandb_project} needs the package wandb, which is not installed here; "
            "pip install wandb, or leave --wandb-project out"
        )


class WandbBoard:
    """Their run: the one that the folder knows if this run is `resumed`, else a new one."""

    def __init__(self, config: LoggingConfig, resolved: Mapping[str, Any], *, resumed: bool) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        folder = Path(config.wandb_folder or ".")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run: Any = self._wandb.init(
                project=config.wandb_project,
                name=config.wandb_exp_name or None,
                entity=config.wandb_entity or None,
                dir=str(folder),
                id=run_id(folder, resumed=resumed),
                resume="allow",
                config=dict(resolved),
                settings=self._wandb.Settings(console="off"),
            )
        except self._wandb.Error as error:
            cause = " ".join(str(error).split())
            raise ConfigError(
                f"logging.wandb_project = {config.wandb_project} cannot be logged to ({cause}); run `wandb login`, or "
                "set WANDB_MODE=offline"
            ) from error
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, step: int, samples: int, values: Mapping[str, float]) -> None:
        """RuntimeError, as of any log that cannot be written."""
        try:
            self._run.log({STEP: step, "samples": samples, **values})
        except self._wandb.Error as error:
            raise RuntimeError(str(error)) from error

    def close(self) -> None:
        try:
            self._run.finish()
        except self._wandb.Error as error:
            raise RuntimeError(str(error)) from error


def run_id(folder: Path, *, resumed: bool) -> str:
    """The id kept in the folder, or a new one that is kept from now on."""
    file = folder / RUN_ID_NAME
    if resumed and file.is_file() and (kept := file.read_text(encoding="utf-8").strip()):
        return kept
    made = secrets.token_hex(4)
    file.write_text(made + "\n", encoding="utf-8")
    return made
