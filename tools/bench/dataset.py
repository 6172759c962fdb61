"""Reading: index build, random documents and packed samples, ours and Megatron-Core's where it is installed.

    python tools/bench/dataset.py corpus_text_document
    python tools/bench/dataset.py corpus_text_document --documents 1600000     and an order for so many made-up lengths

CPU seconds of this process, the best of the repeats after one that does not count. With megatron-core installed its
sample stream is compared with ours, array for array.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from megatron_tlm.data.gpt_dataset import GPTDataset
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.samples import build_sample_index, split_documents

READS = 20000


def best(action: Callable[[], object], repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix")
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--documents", type=int, default=0, help="made-up documents of some 660 tokens")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    indexed = IndexedDataset(args.prefix)
    documents = split_documents("969,30,1", len(indexed))[0]
    dataset = GPTDataset(indexed, documents, None, args.seq_length, 1234)
    chance = np.random.RandomState(0)
    rows = chance.randint(0, len(indexed), READS).tolist()
    samples = chance.randint(0, len(dataset), min(READS, 4000)).tolist()

    def say(what: str, seconds: float, count: int) -> None:
        print(f"{what:<44} {seconds * 1e3:>9.1f} ms  {count / max(seconds, 1e-9):>12,.0f} /s", flush=True)

    build = best(lambda: GPTDataset(indexed, documents, None, args.seq_length, 1234), args.repeats)
    say("ours: order of the corpus, built", build, indexed.num_tokens)
    say("ours: random documents", best(lambda: [indexed[row] for row in rows], args.repeats), len(rows))
    say("ours: random samples", best(lambda: [dataset[row] for row in samples], args.repeats), len(samples))
    if args.documents:
        lengths = np.maximum(1, chance.lognormal(6, 1, args.documents)).astype(np.int32)
        tokens = int(lengths.sum(dtype=np.int64))
        options = {"num_samples": None, "seq_length": args.seq_length, "seed": 1}
        seconds = best(lambda: build_sample_index(lengths, range(len(lengths)), **options), args.repeats)
        say(f"ours: order of {tokens / 1e9:.2f} G made-up tokens", seconds, tokens)
    try:
        megatron(args, indexed, dataset, rows, samples, say)
    except ImportError as error:
        print(f"megatron-core is not measured: {error}")


def megatron(args, indexed, dataset, rows, samples, say) -> None:  # type: ignore[no-untyped-def]
    """The same by megatron-core 0.16, whose classes need a process group for nothing but rank 0's cache."""
    start = time.process_time()
    from megatron.core.datasets.gpt_dataset import GPTDataset as TheirDataset
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset as TheirIndexed
    from megatron.core.datasets.utils import Split

    print(f"megatron-core: imported in {time.process_time() - start:.1f} CPU s")
    theirs = TheirIndexed(args.prefix)

    class Tokens:
        unique_identifiers: ClassVar = {"class": "bench"}
        eod, pad, vocab_size = 0, -1, 32000

    def build(folder: str) -> TheirDataset:
        config = GPTDatasetConfig(
            random_seed=1234,
            sequence_length=args.seq_length,
            split="969,30,1",
            path_to_cache=folder,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            tokenizer=Tokens(),
        )
        numbers = np.arange(dataset.documents.start, dataset.documents.stop, dtype=np.int32)
        return TheirDataset(theirs, args.prefix, numbers, None, Split.train, config)

    with tempfile.TemporaryDirectory() as root:
        folders = iter(os.path.join(root, str(number)) for number in range(100))
        say(
            "megatron-core: order, built and cached",
            best(lambda: build(next(folders)), args.repeats),
            indexed.num_tokens,
        )
        their_dataset = build(os.path.join(root, "0"))
        say("megatron-core: random documents", best(lambda: [theirs[row] for row in rows], args.repeats), len(rows))
        say(
            "megatron-core: random samples",
            best(lambda: [their_dataset[row] for row in samples], args.repeats),
            len(samples),
        )
        for row in samples[:500]:
            sample = their_dataset[row]
            whole = np.append(sample["tokens"].numpy(), sample["labels"].numpy()[-1:])
            assert whole.tolist() == dataset[row].tolist(), f"sample {row} differs"
        print("samples: equal")


if __name__ == "__main__":
    main()
