"""How much of a study's differences the choice of held-out documents explains: their sampling error over documents.

    python tools/bench/held_out.py STUDY.yaml OUT PREFIX

Every finished run at a chosen rate scores every document of the pair PREFIX by itself. A difference is the ratio of all
nats to all tokens, averaged over the seeds that arm and reference share; its standard error is that of a ratio over
documents, which are taken as drawn from many. It says nothing of seeds: the study's own intervals do.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.config.study import read_study
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.evaluation.passages import Passage, rolling
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.evaluation.score import Scorer
from megatron_tlm.study.design import Design
from megatron_tlm.study.results import gather

Nats = NDArray[np.float64]


def nats_of(checkpoints: Path, documents: Sequence[Sequence[Passage]]) -> Nats:
    """Nats that each document costs the model."""
    scores = Scorer(load_model(checkpoints, hashes=False).model, batch=32)([p for own in documents for p in own])
    owners = np.repeat(np.arange(len(documents)), [len(own) for own in documents])
    return np.bincount(owners, [score.nats for score in scores], minlength=len(documents))


def ratio(nats: Nats, tokens: Nats) -> tuple[float, float]:
    """Nats per token and its standard error over documents."""
    mean, count = nats.sum() / tokens.sum(), len(nats)
    spread = math.sqrt(((nats - mean * tokens) ** 2).sum() * count / (count - 1))
    return float(mean), float(spread / tokens.sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("output", type=Path, help="the study's folder")
    parser.add_argument("prefix", help="of the held-out pair")
    args = parser.parse_args()
    design = Design(read_study(args.study), args.output)
    pair = IndexedDataset(args.prefix)
    results = gather(design)
    for group in design.file.groups:
        arms = results.of_group(group.name)
        length = arms[0].config.model.seq_length
        documents = [list(rolling(np.asarray(pair[index]), length, length)) for index in range(len(pair))]
        tokens = np.array([sum(p.scored for p in own) for own in documents], np.float64)
        costs = {
            arm.arm: {
                result.run.seed: nats_of(design.run_folder(result.run) / "checkpoints", documents)
                for result in arm.runs
                if result.loss is not None
            }
            for arm in arms
        }
        reference = costs[design.file.reference]
        print(f"{len(documents)} documents, {int(tokens.sum())} tokens predicted {group.name}")
        for name, own in costs.items():
            shared = [seed for seed in own if seed in reference]
            if name == design.file.reference or not shared:
                continue
            mean, error = ratio(np.mean([own[seed] - reference[seed] for seed in shared], axis=0), tokens)
            print(
                f"{name:16} {mean:+.4f} nats per token, standard error over documents {error:.4f}, {len(shared)} seeds"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
