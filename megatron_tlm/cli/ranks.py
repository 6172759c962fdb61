"""A command on one process, or the same command on every rank that torchrun started."""

from collections.abc import Callable
from datetime import timedelta

from megatron_tlm.config.launch import Launch, read_launch
from megatron_tlm.config.schema import ParallelConfig


def on_ranks(work: Callable[[Launch], int], parallel: ParallelConfig, doing: str = "measuring") -> int:
    """The exit code of `work`. With several ranks a process group stands around it, and a failure ends this process.

    `doing` is what a rank that fails was at.
    """
    launch = read_launch()
    if launch.world_size == 1:
        return work(launch)
    # Only now: torch takes a second to import, and one process needs no group.
    from megatron_tlm.comm.groups import default_backend, init_distributed, new_groups_wait, shutdown
    from megatron_tlm.comm.torchrun import stop_with_launcher
    from megatron_tlm.train.survival.leave import leave
    from megatron_tlm.train.survival.whereabouts import Whereabouts

    place = Whereabouts(launch.rank)
    place.at(doing)
    stop_with_launcher()
    timeout = timedelta(minutes=parallel.distributed_timeout_minutes)
    try:
        backend = parallel.distributed_backend or default_backend()
        init_distributed(backend, timeout)
        with new_groups_wait(timeout):
            code = work(launch)
        shutdown()
    except BaseException as error:
        leave(error, place)
    return code
