import pytest
import torch

from megatron_tlm.comm.messages import message_seconds
from megatron_tlm.errors import PlanError
from megatron_tlm.evaluation import measure_messages
from megatron_tlm.evaluation.measure_messages import MessageCost, measure_messages_alone, message_cost
from tests.ranks import run_ranks


def test_a_message_of_the_runs_size_takes_what_was_measured():
    cost = message_cost(1000, smallest=0.001, own=0.003)
    assert cost == MessageCost(0.001, 500_000)
    assert cost.latency + 1000 / cost.bandwidth == pytest.approx(0.003)
    assert message_cost(8, smallest=0.001, own=0.0008) == MessageCost(0.0, 10_000)


def measured(rank):
    return message_seconds((4, 2**22), 2, torch.device("cpu"), rounds=5)


def test_the_ends_of_a_message_measure_it_and_all_ranks_know():
    first, *others = run_ranks(3, measured)
    assert others == [first, first]
    assert min(first) > 0


def test_processes_that_fail_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(measure_messages, "LONGEST_SECONDS", 0.01)
    with pytest.raises(PlanError, match=r"messages = not measured, exit codes of 2 ranks: \[None, None\]"):
        measure_messages_alone(4)
