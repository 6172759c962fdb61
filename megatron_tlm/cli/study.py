"""`megatron-tlm study`: many runs that are compared fairly, from one file."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from megatron_tlm.cli.files import writing
from megatron_tlm.cli.options import note
from megatron_tlm.config.nearest import did_you_mean
from megatron_tlm.config.parser import Parser, integer, program
from megatron_tlm.config.study import read_study
from megatron_tlm.errors import ConfigError
from megatron_tlm.study.choice import snapshot
from megatron_tlm.study.design import Design
from megatron_tlm.study.record import check_study, folder_of, open_study
from megatron_tlm.study.runner import Resources, Runner, forget_failures
from megatron_tlm.study.runs import State
from megatron_tlm.study.status import budget_lines, status_lines

SOME_FAILED = 1

EXAMPLES = """\
examples:
  megatron-tlm study run examples/paper/cpu/piecewise.yaml --parallel 2 --threads-per-run 1
  megatron-tlm study status examples/paper/cpu/piecewise.yaml
  megatron-tlm study report examples/paper/cpu/piecewise.yaml
"""


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--parallel", type=integer(), metavar="N", help="runs at once (default: as many as devices or cores allow)"
    )
    parser.add_argument(
        "--threads-per-run", type=integer(), default=1, metavar="N", help="of each rank's CPU work (default: 1)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try failed runs again")
    parser.add_argument("--dry-run", action="store_true", help="check the study and print its budgets; start nothing")


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("--report-dir", metavar="DIR", help="where the report goes (default: report in the study's)")


def _add_nothing(parser: ArgumentParser) -> None:
    return


def _run(args: Namespace, design: Design) -> int:
    print("\n".join(budget_lines(design)), flush=True)
    if args.dry_run:
        return 0
    for added in open_study(design):
        print(f"added: {added}")
    if args.retry_failed:
        print(f"{forget_failures(design)} failed runs are tried again")
    runner = Runner(design, _resources(args, design.file.ranks), lambda text: print(text, flush=True))
    if not runner.run():
        print("stopped; the same command goes on")
        return 0
    now = snapshot(design)
    print("\n".join(status_lines(now)))
    return SOME_FAILED if any(result.state is State.FAILED for result in now.results.values()) else 0


def _status(args: Namespace, design: Design) -> int:
    _check(design)
    print("\n".join(status_lines(snapshot(design))))
    return 0


def _report(args: Namespace, design: Design) -> int:
    # Only now: drawing takes a second to import.
    from megatron_tlm.study.report import write_report
    from megatron_tlm.study.results import gather

    _check(design)
    results = gather(design)
    if all(result.state is State.WAITING for result in results.now.results.values()):
        raise ConfigError(
            f"study = {design.file.name}: 0 of its runs have begun in {design.folder}, and a report needs 1; start "
            f"them with `megatron-tlm study run {args.file}`"
        )
    folder = Path(args.report_dir) if args.report_dir else design.folder / "report"
    with writing("--report-dir", folder):
        files = write_report(results, folder)
    print("\n".join(map(str, files)))
    return 0


def _check(design: Design) -> None:
    """Before its results are told, which need no text."""
    for change in check_study(design):
        note(f"{change}: not the text that the study's runs were on, of which this tells")


def _resources(args: Namespace, ranks: int) -> Resources:
    threads = args.threads_per_run
    devices = cuda_devices()
    room = len(devices) // ranks if devices else max(1, (os.cpu_count() or 1) // (ranks * threads))
    if devices and not room:
        raise ConfigError(f"study.ranks = {ranks} exceeds the {len(devices)} devices of this machine; lower it")
    parallel = room if args.parallel is None else args.parallel
    if devices and parallel > room:
        raise ConfigError(
            f"--parallel = {parallel} runs of {ranks} ranks need {parallel * ranks} devices and there are "
            f"{len(devices)}; give at most {room}"
        )
    return Resources(parallel, threads, devices)


def cuda_devices() -> tuple[str, ...]:
    """The devices that runs may be given, by the names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(given[:count]) if given else tuple(map(str, range(count)))


Action = Callable[[Namespace, Design], int]
ACTIONS: dict[str, tuple[str, Callable[[ArgumentParser], None], Action]] = {
    "run": ("start what has not been done, and go on with what was interrupted", _add_run, _run),
    "status": ("where each run stands", _add_nothing, _status),
    "report": ("what came out, as a page, as Markdown with pictures and as JSON", _add_report, _report),
}

HELP = """\
usage: megatron-tlm study ACTION FILE [flags]

FILE is a run's YAML with a study: section: arms, learning rates, seeds. docs/studies.md describes it.

actions:
{actions}

`megatron-tlm study run --help` lists the flags of an action.

{examples}"""


def main(arguments: Sequence[str]) -> int:
    """Dispatch to an action; 0, 1 where runs failed, or 2 for a user's mistake."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = "\n".join(f"  {name:8} {text}" for name, (text, *_) in ACTIONS.items())
        print(HELP.format(actions=rows, examples=EXAMPLES), end="")
        raise SystemExit(0)  # as every other command's --help
    name = arguments[0]
    if name not in ACTIONS:
        raise ConfigError(f"study {name} is no action; {did_you_mean(name, ACTIONS)}")
    text, add, action = ACTIONS[name]
    parser = Parser(prog=program(f"study {name}"), description=text)
    parser.add_argument("file", metavar="FILE", help="the study")
    parser.add_argument("--output", metavar="DIR", help="folder of the study (default: runs/ and the file's name)")
    add(parser)
    args = parser.parse(arguments[1:])
    file = read_study(Path(args.file))
    return action(args, Design(file, Path(args.output) if args.output else folder_of(file.name)))
