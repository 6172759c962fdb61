"""What `evaluate` does once its flags are in order: a model restored, sets measured one by one, results told."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from megatron_tlm import __version__
from megatron_tlm.checkpoint.manifest import MANIFEST_NAME
from megatron_tlm.checkpoint.tensor_file import hash_file
from megatron_tlm.cli.countdown import Countdown
from megatron_tlm.cli.options import note
from megatron_tlm.cli.results import Record, heading, table, tell_results
from megatron_tlm.config.launch import Launch
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.data.documents import read_chunks
from megatron_tlm.data.gpt_dataset import check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.inputs import Source, expand_inputs
from megatron_tlm.data.samples import split_documents
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.errors import ConfigError
from megatron_tlm.evaluation import wikitext
from megatron_tlm.evaluation.passages import Passage, check_stride
from megatron_tlm.evaluation.perplexity import Perplexity, total
from megatron_tlm.evaluation.protocols import (
    Document,
    LastWords,
    Windows,
    document_passages,
    last_word_passages,
    last_words,
    stream_passages,
)
from megatron_tlm.evaluation.restore import load_model
from megatron_tlm.evaluation.score import Score, Scorer


@dataclass(frozen=True)
class Options:
    """Which model, and through what windows; None leaves it to the checkpoint."""

    load: str
    step: int | None
    hashes: bool
    context: int | None
    stride: int | None
    batch: int
    dtype: str | None


class Measuring:
    """A model on all ranks of a launch, and the records of what was measured so far. Collective throughout."""

    def __init__(self, options: Options, parallel: ParallelConfig, launch: Launch) -> None:
        self._launch, self._batch = launch, options.batch
        dtype = None if options.dtype is None else getattr(torch, options.dtype)
        self._restored = load_model(
            options.load, options.step, dtype, tell=note, hashes=options.hashes, parallel=parallel, launch=launch
        )
        self._windows = self._restored.together(lambda: self._choose_windows(options))
        self._records: list[Record] = []
        self._tables: list[str] = []

    def pair(self, prefix: str, split: str | None, iterations: int | None) -> None:
        """A .bin/.idx pair, or the validation share of it, or its first batches."""

        def open_pair() -> tuple[Record, list[Passage]]:
            indexed = IndexedDataset(prefix)
            check_vocabulary(indexed, self._restored.plan.shape.vocab_size)
            sequences = range(len(indexed)) if split is None else split_documents(split, len(indexed))[1]
            if not sequences:
                raise ConfigError(
                    f"--split = {split} leaves 0 of the {len(indexed)} documents of {prefix} for validation; raise "
                    "its second share, or leave --split out"
                )
            limit = None if iterations is None else iterations * self._batch
            data = {"prefix": indexed.prefix, "digest": indexed.digest, "sequences": [sequences.start, sequences.stop]}
            return data, stream_passages(indexed, sequences, self._windows, limit)

        data, passages = self._restored.together(open_pair)
        result = total(self._score(passages, prefix))
        self._add(prefix, "stream", data | {"windows": len(passages)}, _numbers(result))

    def text(self, pattern: str, protocol: str, key: str, limit: int | None) -> None:
        """The documents of all files that a pattern names, as one set."""

        def open_texts() -> tuple[Record, list[str], Tokenizer]:
            tokenizer = self._tokenizer(f"--text = {pattern}")
            sources = expand_inputs([pattern])
            if any(source.is_stream for source in sources):
                raise ConfigError(f"--text = {pattern} is standard input, which has no hash to keep; give a file")
            texts = list(islice(_texts(sources, key, paged=protocol == "wikitext"), limit))
            files = [{"path": str(source), "sha256": hash_file(source.path).sha256} for source in sources]
            return {"files": files, "json_key": key, "documents": len(texts)}, texts, tokenizer

        data, texts, tokenizer = self._restored.together(open_texts)
        if protocol == "lambada":
            passages = self._restored.together(lambda: last_word_passages(texts, tokenizer, self._windows.context))
            words = last_words(self._score(passages, pattern))
            self._add(pattern, protocol, data, _word_numbers(words))
            return
        read = wikitext.detokenize if protocol == "wikitext" else str
        documents = self._restored.together(
            lambda: document_passages([Document(read(text), text) for text in texts], tokenizer, self._windows)
        )
        result = documents.perplexity(self._score(documents.passages, pattern))
        self._add(pattern, protocol, data, _numbers(result))

    def tasks(self, names: Sequence[str], include_path: str | None, num_fewshot: int | None, limit: int | None) -> None:
        """Tasks of lm-evaluation-harness: a record for each, and the harness's own table."""
        tokenizer = self._restored.together(lambda: self._tokenizer(f"--tasks = {' '.join(names)}"))
        harness = self._restored.together(_import_harness)
        say: Callable[[str], None] = (lambda told: None) if self._launch.rank else note
        manager, found = self._restored.together(lambda: harness.load_tasks(names, include_path, say))
        model = harness.HarnessModel(
            self._restored.model, tokenizer, self._windows.context, self._batch, self._countdown
        )
        with ExitStack() as aside:
            aside.enter_context(redirect_stdout(sys.stderr))  # the harness prints, and this is for results
            if self._launch.rank:
                logging.getLogger("lm_eval").setLevel(logging.ERROR)
                aside.enter_context(redirect_stderr(aside.enter_context(open(os.devnull, "w", encoding="utf-8"))))
            results = harness.run_tasks(model, found, manager, num_fewshot, limit)
        if results is None:
            return
        self._tables.append(harness.table(results))
        for name, metrics in results["results"].items():
            config = results["configs"].get(name, {})
            data = {"lm_eval": harness.VERSION, "n_shot": results["n-shot"].get(name), "limit": limit, "config": config}
            self._add(name, "lm-eval", data, {"metrics": metrics})

    def tell(self, json_file: str | None) -> None:
        """On rank 0 alone: a table, or JSON lines; all settings go into a file."""
        if self._launch.rank:
            return
        measured = [record for record in self._records if "metrics" not in record]
        parts = [heading(self._settings()), *([table(measured)] if measured else []), *self._tables]
        tell_results(self._records, "\n\n".join(parts), json_file)

    def _tokenizer(self, asked: str) -> Tokenizer:
        return self._restored.tokenizer_for(asked, "give --data-path")

    def _choose_windows(self, options: Options) -> Windows:
        context = options.context or self._restored.plan.seq_length
        self._restored.check_length("--seq-length", context)
        if options.stride is not None:
            check_stride(context, options.stride)
        return Windows(context, options.stride or context)

    def _score(self, passages: Sequence[Passage], name: str) -> list[Score]:
        with self._countdown(name) as countdown:
            return Scorer(self._restored.model, self._batch, countdown)(passages)

    def _countdown(self, name: str) -> Countdown:
        return Countdown(name, speaks=self._launch.rank == 0)

    def _add(self, name: str, protocol: str, data: Record, numbers: Record) -> None:
        head = {"data": name, "protocol": protocol, "step": self._restored.step}
        self._records.append(head | numbers | {"settings": self._settings() | {"data": data}})

    def _settings(self) -> Record:
        """All that the numbers depend on but the data."""
        restored, grid = self._restored, self._restored.plan.grid
        tokenizer, file = restored.tokenizer, restored.tokenizer_file
        return {
            "checkpoint": str(restored.path),
            "step": restored.step,
            "manifest_sha256": hash_file(restored.path / MANIFEST_NAME).sha256,
            "seq_length": self._windows.context,
            "stride": self._windows.stride,
            "micro_batch_size": self._batch,
            "dtype": str(next(restored.stage.parameters()).dtype).removeprefix("torch."),
            "device": str(restored.model.device),
            "layout": {"tensor": grid.tensor, "pipe": grid.pipe, "data": grid.data},
            "tokenizer": None
            if tokenizer is None
            else {"type": tokenizer.type_name, "sha256": None if file is None else hash_file(file).sha256},
            "version": __version__,
        }


def _import_harness() -> Any:
    try:
        from megatron_tlm.evaluation import harness
    except ImportError as error:
        raise ConfigError(
            f"--tasks needs lm-evaluation-harness, which cannot be imported ({error}); pip install 'megatron_tlm[eval]'"
        ) from error
    return harness


def _texts(sources: Sequence[Source], key: str, *, paged: bool) -> Iterator[str]:
    """The documents of all files, empty ones too; of plain text files the pages, where these are WikiText's."""
    for source in sources:
        for chunk in read_chunks([source], keys=(key,)):
            for document in chunk.documents((key,)):
                for text in document[key]:
                    yield from wikitext.pages(text) if paged and source.kind == "text" else (text,)


def _numbers(result: Perplexity) -> Record:
    found: Record = {
        "tokens": result.num_tokens,
        "loss": result.loss,
        "perplexity": result.perplexity,
        "bits_per_token": result.bits_per_token,
    }
    if result.num_bytes:
        found |= {
            "words": result.num_words,
            "bytes": result.num_bytes,
            "word_perplexity": result.word_perplexity,
            "byte_perplexity": result.byte_perplexity,
            "bits_per_byte": result.bits_per_byte,
        }
    return found


def _word_numbers(words: LastWords) -> Record:
    return {
        "examples": words.num_examples,
        "tokens": words.num_tokens,
        "loss": words.nats,
        "perplexity": words.perplexity,
        "accuracy": words.accuracy,
        "accuracy_stderr": words.accuracy_error,
    }
