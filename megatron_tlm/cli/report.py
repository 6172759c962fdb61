"""`megatron-tlm report`: a run as one HTML page that opens in any browser, or several runs over each other."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from megatron_tlm.cli.files import check_file, writing
from megatron_tlm.config.parser import Parser, program
from megatron_tlm.report.compare import compare_page, names_of
from megatron_tlm.report.read import read_run
from megatron_tlm.report.run import run_page
from megatron_tlm.report.scale import size_text

REPORT_NAME = "report.html"

EXAMPLES = """\
examples:
  megatron-tlm report logs
  megatron-tlm report logs --output run-7.html
  megatron-tlm report tapered/logs uniform/logs --output both.html

The page holds losses, learning rate, gradient norm, speed, memory, the taper and the stages as planned and as measured,
restarts, checkpoints and the configuration. It opens in any browser without a network. A run that is still going, or
was killed, is shown as far as it came.
"""


def build_parser() -> Parser:
    parser = Parser(prog=program("report"), description=__doc__, epilog=EXAMPLES)
    parser.add_argument("logdir", metavar="LOGDIR", nargs="+", help="the --log-dir of a run, or of each of several")
    parser.add_argument(
        "--output", metavar="FILE", help=f"page to write (default: LOGDIR/{REPORT_NAME}, of several ./{REPORT_NAME})"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Read, draw, write, and say where."""
    args = build_parser().parse(arguments)
    folders = [Path(name) for name in args.logdir]
    output = None if args.output is None else check_file("--output", args.output)
    runs = [read_run(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    alone = len(runs) == 1
    output = output or Path(folders[0] if alone else ".") / REPORT_NAME
    made = run_page(runs[0], time.time()) if alone else compare_page(runs, time.time())
    with writing("--output", output):
        _write(made, output)
    print(f"{output}: {size_text(len(made.encode()))}, open it in a browser")
    return 0


def _write(page: str, output: Path) -> None:
    """The whole page or none; a pipe or a device is written into and not replaced."""
    if output.exists() and not output.is_file():
        output.write_text(page, encoding="utf-8")
        return
    aside = output.with_name(f".{output.name}.new")
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, output)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
