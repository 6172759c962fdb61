"""What is compared between ranks, and how a difference is told."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig, LoggingConfig, ModelConfig, TrainingConfig
from megatron_tlm.train.survival import rank_facts as facts_of
from megatron_tlm.train.survival.rank_facts import check_facts, code_hash, compared_fields, rank_facts, source_hashes

CONFIG = Config(ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=16, vocab_size=64))


def facts(node: str = "a", config: Config = CONFIG, **changes: Any) -> dict[str, Any]:
    told = dict(rank_facts(config))
    told |= {"node": node, "network": node, "address": "10.0.0.1"}
    same = dict(told["same"])
    same.update({name.replace("_", " "): value for name, value in changes.items()})
    return told | {"same": same}


def test_ranks_that_are_alike_pass() -> None:
    assert check_facts([facts(), facts("b"), None]) is None


def test_other_code_is_told_with_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = facts()
    hashes = dict(source_hashes()) | {"train/loop.py": "x", "train/new.py": "y", "a.py": "z", "b.py": "z"}
    monkeypatch.setattr(facts_of, "source_hashes", lambda: hashes)
    theirs = facts("b")
    assert ours["same"]["code"] != theirs["same"]["code"]
    assert check_facts([ours, theirs]) == (
        f"code = {ours['same']['code']} on a, {theirs['same']['code']} on b, in a.py, b.py, train/loop.py and 1 more; "
        "install the same megatron_tlm on all of them"
    )


def test_the_hash_is_of_every_source_and_of_nothing_else() -> None:
    names = set(source_hashes())
    assert {"train/survival/rank_facts.py", "config/presets/tiny.yaml", "cli/main.py"} <= names
    assert all(name.endswith((".py", ".yaml")) for name in names)
    assert len(code_hash()) == 12


def test_other_versions_are_told() -> None:
    told = check_facts([facts(), facts("b", version_torch="1.0"), facts("c", version_torch="1.0")])
    assert told is not None
    assert told.endswith("1.0 on b, c; make the environments equal")
    assert told.startswith("torch = ")


def test_another_backend_is_told() -> None:
    told = check_facts([facts(backend="nccl"), facts("b", backend="gloo")])
    assert told is not None
    assert told.startswith("backend = nccl on a, gloo on b; mend the GPUs or drivers of the one")


def test_another_configuration_is_told_by_its_field() -> None:
    other = replace(CONFIG, training=TrainingConfig(seed=7))
    assert check_facts([facts(), facts("b"), facts("c", other)]) == (
        "training.seed = 1234 on a, b, 7 on c; give every node the same flags and the same --config file"
    )


def test_paths_may_differ_but_for_the_folder_to_save_in() -> None:
    here = replace(CONFIG, data=DataConfig(data_path=("/a/corpus",)), logging=LoggingConfig(log_dir="/a"))
    there = replace(CONFIG, data=DataConfig(data_path=("/b/corpus",)), logging=LoggingConfig(log_dir="/b"))
    assert check_facts([facts("a", here), facts("b", there)]) is None
    here = replace(CONFIG, checkpoint=CheckpointConfig(save="/a"))
    there = replace(CONFIG, checkpoint=CheckpointConfig(save="/b"))
    assert check_facts([facts("a", here), facts("b", there)]) == (
        "checkpoint.save = /a on a, /b on b; every rank writes into that folder, give one that all nodes see"
    )
    fields = compared_fields(CONFIG)
    assert "checkpoint.save" in fields
    assert not {"checkpoint.load", "data.data_path", "logging.log_dir", "data.tokenizer_model"} & fields.keys()


def test_a_loopback_on_one_of_several_nodes_is_told() -> None:
    told = check_facts([facts(), facts("b") | {"address": "127.0.0.1"}])
    assert told is not None
    assert told.startswith("gloo on b = 127.0.0.1 is its loopback")


def test_a_rank_without_facts_says_why() -> None:
    assert check_facts([facts(), {"node": "b", "fault": "eth9 is absent; give eth0"}]) == (
        "rank 1: eth9 is absent; give eth0"
    )


def test_ranks_of_one_node_are_compared_too() -> None:
    told = check_facts([facts(version_torch="2.0"), facts(version_torch="1.0")])
    assert told == "torch = 2.0 on a, 1.0 on a; make the environments equal"


def test_a_node_is_named_by_its_number_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUP_WORLD_SIZE", raising=False)
    assert facts_of.node() == socket.gethostname()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("GROUP_RANK", "1")
    assert facts_of.node().endswith(" (node 1)")
