"""Text to .bin/.idx: the tokenizer alone, `megatron-tlm preprocess`, and Megatron's own tool on the same text.

    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tok.model
    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tokenizer.json
    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tok.model --megatron Megatron-LM \\
        --megatron-python megatron-venv/bin/python

Megatron reads the folder of a tokenizer.json through transformers, which wants a tokenizer_config.json beside it that
names tokenizer_class and eos_token. MEGATRON_PYTHONPATH holds what else its interpreter shall find.

CPU seconds are user + system of all processes of a run, wall seconds the clock's, the peak that of its largest process.
Starting up is measured apart, on the first five lines; it is part of all columns but the two `above`: what reading,
JSON, writing and the rest cost more CPU than the tokenizer's own batch call on texts in memory, on as many threads of
one process, and in as many processes at once. Jobs run in turns, the median of the repeats is told, and of the two
`above` the median of each round's own. Outputs are compared byte by byte.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from megatron_tlm.data.documents import read_chunks
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.data.tokenizers import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
BATCH = 512


@dataclass(frozen=True)
class Run:
    """What one command took."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command: list[str], environment: dict[str, str]) -> Run:
    """One command, its whole process tree measured as its resources are collected."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if status:
            output.seek(0)
            sys.exit(output.read().decode()[-3000:])
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def encode_alone(corpus: str, model: str, threads: int) -> tuple[Run, int]:
    """The tokenizer's own batch call over texts that lie in memory."""
    tokenizer, texts = load_tokenizer(None, model), read_corpus(corpus)
    wall, cpu, tokens = time.perf_counter(), time.process_time(), 0
    for start in range(0, len(texts), BATCH):
        tokens += sum(map(len, tokenizer.encode_batch(texts[start : start + BATCH], threads)))
    return Run(time.perf_counter() - wall, time.process_time() - cpu, 0), tokens


def encode_in_processes(corpus: str, model: str, count: int) -> Run:
    """The same in forked processes, each with its share of the texts: what they cost one another is in it."""
    tokenizer, texts = load_tokenizer(None, model), read_corpus(corpus)
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    children, wall, cpu = [], time.perf_counter(), 0.0
    for number in range(count):
        if (child := os.fork()) == 0:
            for batch in batches[number::count]:
                tokenizer.encode_batch(batch)
            os._exit(0)
        children.append(child)
    for child in children:
        _, status, usage = os.wait4(child, 0)
        if status:
            sys.exit(f"process {child} ended with {os.waitstatus_to_exitcode(status)}")
        cpu += usage.ru_utime + usage.ru_stime
    return Run(time.perf_counter() - wall, cpu, 0)


def read_corpus(corpus: str) -> list[str]:
    chunks = read_chunks(expand_inputs([corpus]))
    return [text for chunk in chunks for document in chunk.documents(["text"]) for text in document["text"]]


def ours(corpus: str, model: str, prefix: Path, workers: int) -> list[str]:
    tool = [sys.executable, str(ROOT / "tools" / "preprocess_data.py")]
    return [*tool, "--input", corpus, "--output-prefix", str(prefix), "--tokenizer-model", model, *tail(workers)]


def theirs(args: argparse.Namespace, corpus: str, prefix: Path, workers: int) -> list[str]:
    kind = "HuggingFaceTokenizer" if args.tokenizer_model.endswith(".json") else "SentencePieceTokenizer"
    model = str(Path(args.tokenizer_model).parent) if kind == "HuggingFaceTokenizer" else args.tokenizer_model
    tool = [args.megatron_python, str(Path(args.megatron) / "tools" / "preprocess_data.py")]
    files = ["--input", corpus, "--output-prefix", str(prefix)]
    return [*tool, *files, "--tokenizer-type", kind, "--tokenizer-model", model, *tail(workers)]


def tail(workers: int) -> list[str]:
    return ["--append-eod", "--workers", str(workers), "--log-interval", "100000"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a .jsonl with the key `text`")
    parser.add_argument("--tokenizer-model", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--megatron", help="a checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable, help="an interpreter that can import it")
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    megatron_environment = dict(os.environ)
    if args.megatron:
        extra = [args.megatron, os.environ.get("MEGATRON_PYTHONPATH", "")]
        megatron_environment["PYTHONPATH"] = os.pathsep.join(filter(None, extra))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = folder / "few.jsonl"
        with open(args.corpus, "rb") as file:
            few.write_bytes(b"".join(islice(file, 5)))
        tools = {"megatron-tlm": (lambda *a: ours(a[0], args.tokenizer_model, a[1], a[2]), dict(os.environ))}
        if args.megatron:
            tools["Megatron"] = (lambda *a: theirs(args, *a), megatron_environment)
        runs, tokens = in_turns(args, tools, few, folder)
        columns = ("wall s", "CPU s", "tokens / CPU s", "above threads", "processes", "peak MB")
        print(f"{'':<26} {columns[0]:>8} {columns[1]:>8} " + " ".join(f"{name:>14}" for name in columns[2:]))
        for job in runs:
            row(job, runs, tokens)
        compare(folder, [f"{tool}-{workers}" for tool in tools for workers in args.workers])
    print(json.dumps({"tokens": tokens, "repeats": args.repeats}))


Tool = tuple[Callable[..., list[str]], dict[str, str]]


def in_turns(
    args: argparse.Namespace, tools: dict[str, Tool], few: Path, folder: Path
) -> tuple[dict[str, list[Run]], int]:
    """Every job once a round, so that what else the machine does falls on all alike; and the tokens of the corpus."""
    runs: dict[str, list[Run]] = {}
    tokens = 0
    for _ in range(args.repeats):
        for workers in args.workers:
            alone, tokens = encode_alone(args.corpus, args.tokenizer_model, workers)
            runs.setdefault(f"tokenizer, threads {workers}", []).append(alone)
            runs.setdefault(f"tokenizer, processes {workers}", []).append(
                encode_in_processes(args.corpus, args.tokenizer_model, workers)
            )
        for tool, (command, environment) in tools.items():
            begun = run(command(str(few), folder / f"few-{tool}", 1), environment)
            runs.setdefault(f"{tool}, five lines", []).append(begun)
            for workers in args.workers:
                prefix = folder / f"{tool}-{workers}"
                runs.setdefault(f"{tool}, workers {workers}", []).append(
                    run(command(args.corpus, prefix, workers), environment)
                )
                written = IndexedDataset(f"{prefix}_text_document").num_tokens
                tokens = written  # with an end to every document
    return runs, tokens


def row(job: str, runs: dict[str, list[Run]], tokens: int) -> None:
    tool, what = job.split(", ")
    wall = statistics.median(run.wall_seconds for run in runs[job])
    cpu = statistics.median(run.cpu_seconds for run in runs[job])
    rate = "" if what == "five lines" else f"{tokens / cpu / 1e3:.0f} k"
    above = ["", ""]
    if what.startswith("workers"):
        starts = runs[f"{tool}, five lines"]
        for column, kind in enumerate(("threads", "processes")):
            floors = runs[f"tokenizer, {what.replace('workers', kind)}"]
            rounds = zip(runs[job], starts, floors, strict=True)
            ratios = [(run.cpu_seconds - start.cpu_seconds) / floor.cpu_seconds for run, start, floor in rounds]
            above[column] = f"{statistics.median(ratios) - 1:+.1%}"
    peak = max(run.peak_bytes for run in runs[job]) / 1e6
    print(
        f"{job:<26} {wall:>8.1f} {cpu:>8.1f} {rate:>14} {above[0]:>14} {above[1]:>14} {peak:>14.0f}",
        flush=True,
    )


def compare(folder: Path, names: list[str]) -> None:
    """Every output must be the first one's bytes."""
    for suffix in (".bin", ".idx"):
        first, *others = ((folder / f"{name}_text_document{suffix}").read_bytes() for name in names)
        print(f"{suffix}: {'equal' if all(other == first for other in others) else 'DIFFERENT'} in {', '.join(names)}")


if __name__ == "__main__":
    main()
