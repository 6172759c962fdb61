"""Conversion between layouts beside a plain copy of the same bytes, and beside DeepSpeed's ds_to_universal.

    python tools/bench/convert.py [--parameters 300] [--rounds 3] [--folder /var/tmp] [--no-deepspeed]

Two checkpoints: one made up, of several gigabytes, for speed and for the peak of memory; one of a model that
DeepSpeed trained for a step on two ranks, saved by both, for the comparison. Every job is a process of its own, start
included; its memory is sampled, the whole process tree's, without pages of mapped files.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

# A clone that is not installed is enough.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.load import find
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig, TaperConfig, TrainingConfig
from megatron_tlm.plan.build import build_plan

VOCAB = 32_000
ROLES = {"weight": torch.bfloat16, "master": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
STARTS = ("megatron_tlm.checkpoint.relayout", "deepspeed.checkpoint.ds_to_universal")
TRAIN_STEP = "--train-step-in"


@dataclass(frozen=True)
class Job:
    """What one process took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def main() -> None:
    options = parse()
    if options.train_step_in is not None:
        train_step(options.train_step_in, options.layers, options.width)
        return
    with tempfile.TemporaryDirectory(prefix="convert-", dir=options.folder) as name:
        root = Path(name)
        large = synthetic(root / "large", options.parameters * 10**6)
        report("made up", large, copies_and_conversions(root, large, options.rounds))
        starts = {name: [run([sys.executable, "-c", f"import {name}"])] for name in STARTS}
        report("imports alone, part of every job above and below", None, starts)
        shutil.rmtree(root / "large")
        if not options.no_deepspeed:
            against_deepspeed(root, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parameters", type=int, default=300, help="millions, of the made-up checkpoint (default: 300)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each job, in turns (default: 3)")
    parser.add_argument("--folder", help="where to write (default: the system's)")
    parser.add_argument("--layers", type=int, default=8, help="of the model that DeepSpeed trains (default: 8)")
    parser.add_argument("--width", type=int, default=768, help="of that model (default: 768)")
    parser.add_argument("--no-deepspeed", action="store_true", help="skip the comparison")
    parser.add_argument(TRAIN_STEP, type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def config_of(layers: int, width: int) -> Config:
    model = ModelConfig(
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        seq_length=64,
        ffn_hidden_size=8 * width // 3 // 64 * 64,
    )
    return Config(
        model,
        taper=TaperConfig(width_multiple=32),
        training=TrainingConfig(global_batch_size=2, bf16=True, train_iters=1),
    )


def synthetic(root: Path, parameters: int) -> Path:
    """A checkpoint of about so many parameters, in four parts of rows, with masters and both moments."""
    width = 1024
    layers = max(1, round((parameters - VOCAB * width) / (12 * width * width)))
    config = config_of(layers, width)
    plan = build_plan(config, VOCAB)
    partial = begin(root, 1)
    for part in range(4):
        pieces = []
        for spec in plan.parameter_specs.values():
            start, stop = spec.shape[0] * part // 4, spec.shape[0] * (part + 1) // 4
            offset = (start, *(0 for _ in spec.shape[1:]))
            size = (stop - start, *spec.shape[1:])
            pieces += [
                Piece(
                    spec.name,
                    role,
                    spec.shape,
                    offset,
                    size,
                    dtype,
                    lambda size=size, dtype=dtype: torch.full(size, 0.5, dtype=dtype),
                )
                for role, dtype in ROLES.items()
            ]
        write_part(partial, part, pieces)
    facts = Facts(1, 2, 128, 1, plan.shape, as_mapping(config), replace(plan.grid, data=4), 1, plan.stages)
    return commit(partial, facts, parts=4)


def copies_and_conversions(root: Path, source: Path, rounds: int) -> dict[str, list[Job]]:
    """`cp` and two conversions of the same bytes, in turns; the disk has them all before the clock stops."""
    jobs: dict[str, list[Job]] = {"cp": [], "to tensor 4 x pipeline 2": [], "to one part": []}
    for _ in range(rounds):
        for name, runs in jobs.items():
            target = root / "target"
            command = ["sh", "-c", f"mkdir -p {target} && cp -r {source} {target} && sync -f {target}"]
            if name != "cp":
                sizes = (4, 2) if "tensor" in name else (1, 1)
                command = convert_command(source.parent, target, *sizes)
            runs.append(run(command))
            shutil.rmtree(target)
    return jobs


def convert_command(source: Path, target: Path, tensor: int, pipe: int) -> list[str]:
    sizes = {"tensor": tensor, "pipeline": pipe, "data": 1}
    flags = [word for axis, size in sizes.items() for word in (f"--target-{axis}-parallel-size", str(size))]
    paths = ["--load-dir", str(source), "--save-dir", str(target), "--no-verify"]
    return [sys.executable, "-m", "megatron_tlm", "convert", *paths, *flags]


def against_deepspeed(root: Path, options: argparse.Namespace) -> None:
    """The same model and optimizer state, rewritten for any layout by each program."""
    sizes = ["--layers", str(options.layers), "--width", str(options.width)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*launcher, __file__, TRAIN_STEP, str(root), *sizes])
    ours, theirs = find(root / "ours"), root / "deepspeed" / "step1"
    jobs: dict[str, list[Job]] = {"convert": [], "ds_to_universal": []}
    for _ in range(options.rounds):
        for name, runs in jobs.items():
            target = root / "target"
            command = convert_command(ours.parent, target, 1, 1)
            if name == "ds_to_universal":
                module = "deepspeed.checkpoint.ds_to_universal"
                folders = ["--input_folder", str(theirs), "--output_folder", str(target)]
                workers = ["--num_extract_workers", "2", "--num_merge_workers", "2"]
                command = [sys.executable, "-m", module, *folders, *workers]
            runs.append(run(command))
            shutil.rmtree(target)
    report("trained, saved by us", ours, {"convert": jobs["convert"]})
    report("trained, saved by DeepSpeed", theirs, {"ds_to_universal": jobs["ds_to_universal"]})


def train_step(root: Path, layers: int, width: int) -> None:
    """On each of two ranks: one step under DeepSpeed, then a checkpoint of ours and one of its own."""
    import numpy as np

    from megatron_tlm.comm.groups import build_mesh, init_distributed, shutdown
    from megatron_tlm.train.engines.build import build_engine
    from megatron_tlm.train.saving.resume import Progress
    from megatron_tlm.train.saving.saver import BackgroundSaver

    torch.set_num_threads(1)
    from datetime import timedelta

    init_distributed("gloo", timedelta(minutes=10))
    config = replace(config_of(layers, width), checkpoint=CheckpointConfig(save=str(root / "ours")))
    plan = build_plan(config, VOCAB, data=2)
    mesh = build_mesh(plan.grid)
    engine = build_engine(config, plan, mesh)
    length = config.model.seq_length + 1
    engine.train_step(iter([np.arange(length, dtype=np.int64)[None] + mesh.rank]), 1e-4)
    saver = BackgroundSaver(config, engine, plan, mesh, None, saved_step=0, say=lambda _: None)
    saver.start(Progress(1, 2, 2 * length, 1), last=True)
    information = {"universal_checkpoint_version": 0.2, "original_vocab_size": VOCAB}
    for kind in ("vocabulary_parameter", "pipeline_replicated_parameter", "tp_replicated_parameter"):
        information[f"{kind}_patterns"] = []
    information |= {"parameter_with_row_parallelism_patterns": [], "parameter_to_average_patterns": []}
    information["parameter_with_2_sub_params_cat_dim_0"] = []
    engine.deepspeed.save_checkpoint(
        str(root / "deepspeed"), tag="step1", client_state={"universal_checkpoint_info": information}
    )
    shutdown()


def run(command: list[str]) -> Job:
    """Seconds and peak of anonymous memory of a command and all that it starts; its output where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    begin, spent = time.perf_counter(), cpu_seconds()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    peaks, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peaks.append(tree_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - begin
    over.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{output}")
    return Job(seconds, cpu_seconds() - spent, max(peaks))


def cpu_seconds() -> float:
    """User and system time of all finished children: what other jobs on the machine change least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_bytes(pid: int) -> int:
    """Anonymous memory of a process and its descendants, as Linux counts it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
    return 1024 * own + sum(tree_bytes(int(child)) for child in children)


def report(title: str, source: Path | None, jobs: dict[str, list[Job]]) -> None:
    size_bytes = sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) if source else 0
    print(f"{title}: {size_bytes / 1e9:.2f} GB" if source else title)
    for name, runs in jobs.items():
        seconds, peak = median(job.seconds for job in runs), max(job.peak_bytes for job in runs)
        cpu = median(job.cpu_seconds for job in runs)
        print(f"  {name:<26} {seconds:7.2f} s, CPU {cpu:6.2f} s, peak {peak / 1e6:6.0f} MB")
        record = {"job": name, "bytes": size_bytes, "seconds": [round(job.seconds, 2) for job in runs]}
        record |= {"cpu_seconds": [round(job.cpu_seconds, 2) for job in runs], "peak_bytes": peak}
        print(f"    {json.dumps(record)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
