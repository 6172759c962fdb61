"""Random streams as a pure function of (seed, step, data rank, stage): nothing of them has to be saved to resume.

The training loop seeds torch with `step_seed` before each step, so the default generators are equal on all tensor
ranks of a stage. Dropout on replicated activations uses them as they are. Dropout on activations that tensor ranks
share out runs inside `shard_stream`, which takes one number from the CPU's default generator (the same on all tensor
ranks) and adds the rank. `torch.utils.checkpoint` restores the CPU's generator before it recomputes, hence the number,
hence the mask: no tracker of generator states is needed.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatron_tlm.comm.groups import AxisGroup


def hashed_seed(*parts: object) -> int:
    """A seed in [0, 2^63) that changes altogether when any part changes."""
    text = ":".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def step_seed(seed: int, step: int, data_rank: int, stage: int) -> int:
    """What to give torch.manual_seed before a step; equal on all tensor ranks, different everywhere else."""
    return hashed_seed("step", seed, step, data_rank, stage)


@contextmanager
def shard_stream(tensor: AxisGroup, device: torch.device) -> Iterator[None]:
    """Within: the default generator of `device` is this tensor rank's own; afterwards it stands as before."""
    if tensor.size == 1:
        yield
        return
    drawn = int(torch.randint(2**62, (), device="cpu", dtype=torch.int64))
    generator = _default_generator(device)
    state = generator.get_state()
    generator.manual_seed(drawn + tensor.rank)
    try:
        yield
    finally:
        generator.set_state(state)


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator
