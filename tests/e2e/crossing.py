"""Runs whose ranks are forked into network namespaces, half a second each, and the corpora that these read."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megatron_tlm.config.schema import Config
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from tests.equivalence.launching import Launch, launch
from tests.equivalence.training import VOCAB
from tests.namespaces import INTERFACE, Node

TENSOR_INSIDE = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}


def write_corpus(folder: Path, seed: int = 1) -> None:
    chance = np.random.RandomState(seed)
    with IndexedDatasetWriter(folder / "corpus", np.dtype(np.uint16)) as writer:
        for _ in range(60):
            writer.add_document(chance.randint(0, VOCAB, chance.randint(1, 60)))


def on_corpus(config: Config, folder: Path) -> Config:
    data = replace(config.data, mock_data=False, data_path=(str(folder / "corpus"),), data_cache_path=str(folder))
    return replace(config, data=replace(data, split="80,20,0"))


def across(
    nodes: list[Node],
    config: Config,
    ranks: int,
    *,
    binds: Callable[[int], dict[Path, Path]] = lambda number: {},
    also: Callable[[int], None] = lambda rank: None,
    **options: Any,
) -> Launch:
    """`launch`, its ranks shared out over the nodes; `binds(node)` are the folders that a node has of its own."""
    each = ranks // len(nodes)

    def move(rank: int) -> None:
        number = rank // each
        nodes[number].enter(binds(number))
        os.environ.update(MASTER_ADDR=nodes[0].address, GLOO_SOCKET_IFNAME=INTERFACE, LOCAL_RANK=str(rank % each))
        os.environ.update(GROUP_RANK=str(number), GROUP_WORLD_SIZE=str(len(nodes)))
        also(rank)

    return launch(config, ranks, before=move, **options)


def refused(ended: Launch) -> str:
    """The sentence that all ranks ended with."""
    assert ended.codes == [2] * len(ended.codes), ended.complained
    assert "Traceback" not in ended.complained
    # [W: torch asks the network for names of addresses, and nobody knows them here.
    lines = [line for line in ended.complained.splitlines() if not line.startswith("[W")]
    sentences = {line.removeprefix("megatron-tlm: error: ") for line in lines}
    assert len(sentences) == 1, ended.complained
    return sentences.pop()
