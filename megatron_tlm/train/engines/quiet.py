"""Imports DeepSpeed without its noise and without its compiler; errors stay as loud as they are.

Must run before the first `import deepspeed` of a process: DeepSpeed reads its environment while it is imported.
"""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator

import torch


def prepare_deepspeed(device: torch.device) -> None:
    """Chooses the accelerator, skips the C++ collective that training never calls, and lowers the log level.

    That collective (`deepspeed_shm_comm`) would be compiled at the first start, 90 seconds on two cores, and a killed
    compile leaves a lock that later starts wait for.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # torchrun sets these; DeepSpeed would look for MPI where a plain `python` has not.
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    warnings.filterwarnings("ignore", message=r".*an autograd kernel was not registered.*", category=UserWarning)
    with hushed():
        import deepspeed
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Swallows what is printed within, unless it ends in an error: then the text comes out before the error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    except BaseException:
        print(said.getvalue(), end="", flush=True)
        raise
