"""Flags of the commands that run a checkpoint: which one, on what text, in what windows, on which layout."""

from argparse import ArgumentParser, Namespace, _ArgumentGroup

from megatron_tlm.cli.files import STANDARD_OUTPUT
from megatron_tlm.config.parser import integer
from megatron_tlm.config.schema import ParallelConfig

Flags = ArgumentParser | _ArgumentGroup
LOAD_HELP = "folder a run was saved in"


def add_checkpoint_flags(parser: Flags) -> None:
    """Which checkpoint, and how it is read."""
    parser.add_argument("--load", required=True, metavar="DIR", help=LOAD_HELP)
    add_step_flags(parser)


def add_step_flags(parser: Flags) -> None:
    """For a command that has its own --load."""
    add_ckpt_step(parser)
    parser.add_argument("--no-check-hashes", action="store_true", help="load without reading every file's hash first")


def add_ckpt_step(parser: Flags, doing: str = "load") -> None:
    parser.add_argument(
        "--ckpt-step", type=integer(0), metavar="N", help=f"step to {doing} (default: the newest complete one)"
    )


def add_json_key(parser: Flags) -> None:
    """Read by `text_key`."""
    parser.add_argument("--json-key", metavar="KEY", help="what holds a document's text (default: text)")


def text_key(args: Namespace) -> str:
    """The key of a document's text; None among the flags says that nobody gave one."""
    return str(args.json_key or "text")


def add_window_flags(parser: Flags, default_length: str = "the run's") -> None:
    parser.add_argument(
        "--seq-length", type=integer(), metavar="N", help=f"tokens a window holds (default: {default_length})"
    )
    parser.add_argument(
        "--micro-batch-size", type=integer(), default=8, metavar="N", help="windows at a time (default: 8)"
    )


def add_layout_flags(parser: Flags) -> None:
    """Read by `layout_of`."""
    parser.add_argument(
        "--tensor-model-parallel-size", type=integer(), default=1, metavar="N", help="ranks that share each layer"
    )
    parser.add_argument(
        "--pipeline-model-parallel-size", type=integer(), default=1, metavar="N", help="stages the layers are cut into"
    )
    parser.add_argument("--distributed-backend", choices=("nccl", "gloo"), help="default: nccl with GPUs, else gloo")


def layout_of(args: Namespace) -> ParallelConfig:
    """The layout that the flags ask for; ranks beyond tensor x pipeline are data ranks."""
    return ParallelConfig(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        distributed_backend=args.distributed_backend,
    )


def add_output_flags(parser: Flags, picture: str | None = None) -> None:
    """--json for all, --plot for a command that draws a `picture`."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="print a line of JSON for each result instead of a table; with FILE the table, and all results in it",
    )
    if picture is not None:
        parser.add_argument("--plot", metavar="FILE", help=f"draw {picture}: .png, .svg or .pdf")
