"""TensorBoard: every scalar over the steps, and over the samples in a run of its own beside them.

    tensorboard/events...              lm loss, grad-norm, ... by step
    tensorboard/by-samples/events...   lm loss vs samples, ... by samples consumed

A resumed run tells TensorBoard from where on to forget what came before. That place is one number for a whole folder:
steps and samples in one folder would lose each other's history.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SAMPLES_FOLDER = "by-samples"


class Board:
    """Both runs in `folder`, after `first_step` finished steps on `first_samples` samples."""

    def __init__(self, folder: Path, first_step: int, first_samples: int) -> None:
        # Takes a second to import; a run without it need not wait.
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self._steps: Any = SummaryWriter(str(folder), purge_step=first_step + 1)
        self._samples: Any = SummaryWriter(str(folder / SAMPLES_FOLDER), purge_step=first_samples + 1)

    def scalars(self, step: int, samples: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._steps.add_scalar(name, value, step)
            self._samples.add_scalar(f"{name} vs samples", value, samples)

    def close(self) -> None:
        self._steps.close()
        self._samples.close()
