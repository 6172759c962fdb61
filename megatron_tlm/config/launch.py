"""What a launcher such as torchrun tells a process through its environment."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from megatron_tlm.errors import ConfigError

LAST_PORT = 65535


class Launch(NamedTuple):
    """This process among those that were started; rank 0 of 1 where no launcher was."""

    rank: int
    world_size: int
    local_rank: int


def read_launch(environment: Mapping[str, str] | None = None) -> Launch:
    """RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT; ConfigError for what is no such number."""
    given = os.environ if environment is None else environment
    world_size = _number(given, "WORLD_SIZE", "a number of ranks", 1, 1)
    rank = _number(given, "RANK", "a rank", 0, 0)
    local_rank = _number(given, "LOCAL_RANK", "a rank", 0, 0)
    if rank >= world_size:
        raise ConfigError(f"RANK = {rank} is beyond the last of WORLD_SIZE = {world_size}; start with torchrun")
    port = _number(given, "MASTER_PORT", "a port", 1, 1)
    if port > LAST_PORT:
        raise ConfigError(f"MASTER_PORT = {port} is above {LAST_PORT}, the last port; give another")
    return Launch(rank, world_size, local_rank)


def _number(given: Mapping[str, str], name: str, what: str, default: int, bound: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < bound:
        raise ConfigError(f"{name} = {text!r} is not {what}; start with torchrun, or unset it")
    return int(text)
