"""Flags of the commands that run a checkpoint on one process or on ranks: the layout, and integers with a bound."""

from argparse import ArgumentParser, Namespace, _ArgumentGroup

from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.config.values import from_flag
from megatron_tlm.errors import ConfigError


def add_layout_flags(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Read by `layout_of`."""
    parser.add_argument("--tensor-model-parallel-size", default="1", metavar="N", help="ranks that share each layer")
    parser.add_argument(
        "--pipeline-model-parallel-size", default="1", metavar="N", help="stages the layers are cut into"
    )
    parser.add_argument("--distributed-backend", choices=("nccl", "gloo"), help="default: nccl with GPUs, else gloo")


def layout_of(args: Namespace) -> ParallelConfig:
    """The layout that the flags ask for; ranks beyond tensor x pipeline are data ranks."""
    return ParallelConfig(
        tensor_model_parallel_size=number(args, "tensor_model_parallel_size", 1) or 1,
        pipeline_model_parallel_size=number(args, "pipeline_model_parallel_size", 1) or 1,
        distributed_backend=args.distributed_backend,
    )


def number(args: Namespace, name: str, bound: int) -> int | None:
    """An integer flag of at least `bound`; None where it is not given."""
    text, flag = getattr(args, name), flag_of(name)
    value: int | None = None if text is None else from_flag(text, int, flag)
    if value is not None and value < bound:
        raise ConfigError(f"{flag} = {value} is below {bound}; give {bound} or more")
    return value


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
