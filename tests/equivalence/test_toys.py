"""Each mechanism at a small task of its own: what it must win or match. Deterministic; they show direction, not size.

Hope's cadence: tests/equivalence/test_train_levels.py.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_tlm.layers.gated_attention import GatedAttention
from megatron_tlm.layers.memory import MemoryCache, NeuralMemory
from megatron_tlm.layers.memory_recurrence import Gates, State, run_segment
from megatron_tlm.model.init import init_stage
from megatron_tlm.model.stage import Stage
from tests.mixers import build, local_weights
from tests.tiny_model import VOCABULARY, tiny_plan

PAIRS = 8


def test_a_memory_learns_pairs_while_it_reads_them() -> None:
    """Eight pairs over and over: what the memory answers to a key, before it is told, comes ever nearer."""
    generator = torch.Generator().manual_seed(0)
    head, inner, rounds = 16, 64, 12
    keys = F.normalize(torch.randn(PAIRS, head, generator=generator), dim=-1)
    values = torch.randn(PAIRS, head, generator=generator) * 0.5
    k, v = keys.repeat(rounds, 1)[None], values.repeat(rounds, 1)[None]
    state = State(
        torch.stack((torch.randn(inner, head, generator=generator), torch.zeros(inner, head)))[None],
        torch.stack((torch.randn(head, inner, generator=generator) / inner**0.5, torch.zeros(head, inner)))[None],
    )
    scale, shift = torch.ones(1, 1, head), torch.zeros(1, 1, head)
    errors = []
    for start in range(0, k.shape[1], PAIRS):
        part = slice(start, start + PAIRS)
        nothing = Gates(torch.zeros(1, 2, PAIRS), torch.full((1, 2, PAIRS), -1e9), torch.zeros(1, 2, PAIRS))
        asked, _ = run_segment(k[:, part], k[:, part], v[:, part], nothing, state, scale, shift, 4)
        errors.append(float((asked - v[:, part]).square().mean()))
        gates = Gates(torch.full((1, 2, PAIRS), 0.05), torch.full((1, 2, PAIRS), 0.6).log(), torch.zeros(1, 2, PAIRS))
        _, state = run_segment(k[:, part], k[:, part], v[:, part], gates, state, scale, shift, 4)
    assert errors[-1] < 0.35 * errors[0]
    assert all(later < earlier for earlier, later in pairwise(errors[:5]))


def recalled(max_step: float, rounds: int = 10) -> float:
    """The share of keys to which a block of Titans, set by hand and not trained, answers with their value.

    Tokens are random vectors. The filters let a memory take the token before as its key and the token itself as its
    value, so that what it learns while reading `key value key value ...` is the pairs. Asked with keys alone, its
    answer is the nearest value.
    """
    plan = tiny_plan(query_groups=8, kv_channels=16, mixer="titans_lmm", memory_expansion=4, memory_max_step=max_step)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(2 * PAIRS, 24, generator=generator, dtype=torch.float64)
    weights = local_weights(plan)
    inner = weights["memory.first"].shape[1]
    mixed = torch.randn(128, 24, generator=generator, dtype=torch.float64) / 24**0.5
    for name, tap in (("q", 3), ("k", 2), ("v", 3)):
        weights[f"memory.{name}.weight"] = mixed
        weights[f"memory.{name}_conv.weight"] = torch.zeros(128, 4).double().index_fill_(1, torch.tensor(tap), 1.0)
    for name, bias in (("step", 30.0), ("momentum", -1.0), ("forget", -30.0)):
        weights[f"memory.{name}.weight"] = torch.zeros_like(weights[f"memory.{name}.weight"])
        weights[f"memory.{name}.bias"] = torch.full((8, 2), bias).double()
    weights["memory.first"] = torch.randn(weights["memory.first"].shape, generator=generator, dtype=torch.float64)
    weights["memory.second"] = torch.randn(weights["memory.second"].shape, generator=generator).double() / inner**0.5
    weights["memory.scale"], weights["memory.shift"] = torch.ones(8, 16).double(), torch.zeros(8, 16).double()
    memory = build(plan, weights).memory
    assert isinstance(memory, NeuralMemory)
    orders = [torch.randperm(PAIRS, generator=generator) for _ in range(rounds)]
    read = torch.cat([torch.stack((order, order + PAIRS), dim=1).flatten() for order in orders])
    cache = MemoryCache()
    memory(tokens[read][None], None, None, cache)
    answers = []
    for key in range(PAIRS):
        asked = replace(cache, past=dict(cache.past))
        answers.append(memory(tokens[key][None, None], None, None, asked).flatten())
    values = F.silu(tokens[PAIRS:] @ mixed.T)
    nearest = (torch.stack(answers) @ F.normalize(values, dim=-1).T).argmax(-1)
    return float((nearest == torch.arange(PAIRS)).double().mean())


def test_a_block_of_titans_recalls_pairs_and_without_learning_does_not() -> None:
    with torch.no_grad():
        assert recalled(0.1) >= 0.75
        assert recalled(0.0) <= 0.375


def follow_the_last_token(steps: int, **architecture: Any) -> tuple[list[float], float]:
    """Spreads of the gates while a model learns that each token has one follower, and its loss at the end."""
    plan = tiny_plan(**architecture)
    stage = Stage(plan)
    init_stage(stage, plan, seed=1, std=0.1)
    generator = torch.Generator().manual_seed(3)
    follower = torch.randperm(VOCABULARY, generator=generator)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2, fused=True)
    spreads: list[float] = []

    def note(module: torch.nn.Module, given: Any, logits: Tensor) -> None:
        gates = torch.sigmoid(logits.detach())
        assert abs(float(gates.mean()) - 0.5) < 0.1
        spreads.append(float(gates.std()))

    for module in stage.modules():
        if isinstance(module, GatedAttention):
            module.gate.register_forward_hook(note)
    loss = torch.tensor(torch.inf)
    for _ in range(steps):
        window = [torch.randint(VOCABULARY, (16, 1), generator=generator)]
        for _ in range(8):
            window.append(follower[window[-1]])
        tokens = torch.cat(window, dim=1)
        loss = F.cross_entropy(stage(tokens[:, :-1]).mT[:, :VOCABULARY], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return spreads, float(loss.detach())


def test_gates_begin_half_open_and_come_to_depend_on_the_input() -> None:
    """Their mean stays near a half in so short a run; the papers' 0.12 is that of billions of tokens."""
    spreads, loss = follow_the_last_token(100, mixer="gated_attention")
    _, plain = follow_the_last_token(100)
    assert loss < 1.2 * plain
    assert spreads[-1] > 1.3 * spreads[0]
