"""Text to .bin/.idx: the tokenizer alone, `megatron-tlm preprocess`, and Megatron's own tool on the same text.

    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tok.model
    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tokenizer.json
    python tools/bench/preprocess.py corpus.jsonl --tokenizer-model tok.model --megatron Megatron-LM \\
        --megatron-python megatron-venv/bin/python

CPU seconds are user + system of all processes of a run, wall seconds the clock's, the peak that of its largest process.
Starting up is measured apart, on the first five lines; it is part of all columns but `above tokenizer`: what reading,
JSON, writing and processes cost more CPU than the tokenizer's own batch call on as many threads. Jobs run in turns, the
median of the repeats is told. Outputs are compared byte by byte.
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
    tokenizer = load_tokenizer(None, model)
    chunks = read_chunks(expand_inputs([corpus]))
    texts = [text for chunk in chunks for document in chunk.documents(["text"]) for text in document["text"]]
    wall, cpu, tokens = time.perf_counter(), time.process_time(), 0
    for start in range(0, len(texts), BATCH):
        tokens += sum(map(len, tokenizer.encode_batch(texts[start : start + BATCH], threads)))
    return Run(time.perf_counter() - wall, time.process_time() - cpu, 0), tokens


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
        print(f"{'':<26} {'wall s':>8} {'CPU s':>8} {'tokens / CPU s':>15} {'above tokenizer':>16} {'peak MB':>8}")
        for job, found in runs.items():
            workers = int(job.split()[-1]) if job.split()[-1].isdecimal() else 0
            alone = runs.get(f"tokenizer alone, {workers}") if not job.startswith("tokenizer") else None
            start = runs.get(f"{job.split(',')[0]}, five lines")
            row(job, found, tokens if workers else 0, alone, start)
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
            runs.setdefault(f"tokenizer alone, {workers}", []).append(alone)
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


def row(name: str, runs: list[Run], tokens: int, alone: list[Run] | None, start: list[Run] | None) -> None:
    wall = statistics.median(run.wall_seconds for run in runs)
    cpu = statistics.median(run.cpu_seconds for run in runs)
    rate = f"{tokens / cpu / 1e3:.0f} k" if tokens else ""
    above = ""
    if alone and start:
        starting = statistics.median(run.cpu_seconds for run in start)
        above = f"{(cpu - starting) / statistics.median(run.cpu_seconds for run in alone) - 1:+.1%}"
    peak = max(run.peak_bytes for run in runs) / 1e6
    print(f"{name:<26} {wall:>8.1f} {cpu:>8.1f} {rate:>15} {above:>16} {peak:>8.0f}", flush=True)


def compare(folder: Path, names: list[str]) -> None:
    """Every output must be the first one's bytes."""
    for suffix in (".bin", ".idx"):
        first, *others = ((folder / f"{name}_text_document{suffix}").read_bytes() for name in names)
        print(f"{suffix}: {'equal' if all(other == first for other in others) else 'DIFFERENT'} in {', '.join(names)}")


if __name__ == "__main__":
    main()
