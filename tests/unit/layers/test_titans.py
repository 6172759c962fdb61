"""Titans' blocks: recomputation inside, windows, caches, precision. What they compute: equivalence/test_mixers."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_tlm.errors import PlanError
from megatron_tlm.layers.memory import NeuralMemory
from megatron_tlm.layers.residual import ResidualBlock
from megatron_tlm.layers.titans import attend_window
from tests.mixers import branch_and_gradients, build, local_weights, random_input
from tests.tiny_model import assert_same, tiny_plan

LMM = {"mixer": "titans_lmm"}
MAG = {"mixer": "titans_mag", "attention_window": 4}


def memory_of(block: ResidualBlock) -> NeuralMemory:
    assert isinstance(block.memory, NeuralMemory)
    return block.memory


def in_segments_of(chunks: int, plan: Any) -> Any:
    """The branch as a function of input and weights, with that many chunks per recomputed segment."""

    def run(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        block = build(plan, {name: tensor.detach() for name, tensor in weights.items()})
        memory_of(block).segment_chunks = chunks
        for name, tensor in weights.items():
            owner, _, leaf = name.rpartition(".")
            module = block.get_submodule(owner)
            delattr(module, leaf)
            setattr(module, leaf, tensor)
        return block.branch(x)

    return run


@pytest.mark.parametrize("kind", [LMM, MAG], ids=["lmm", "mag"])
def test_recomputing_segments_changes_no_bit(kind: dict[str, Any]) -> None:
    plan = tiny_plan(seq_length=25, **kind)
    weights, x = local_weights(plan), random_input(plan, length=25)
    del weights["norm.weight"]
    full = {"norm.weight": torch.ones(24, dtype=torch.float64)}
    kept, gradients = branch_and_gradients(lambda x, own: in_segments_of(100, plan)(x, own | full), x, weights)
    for chunks in (1, 3):
        again, recomputed = branch_and_gradients(lambda x, own: in_segments_of(chunks, plan)(x, own | full), x, weights)  # noqa: B023
        assert torch.equal(kept, again)
        assert_same(recomputed, gradients, tolerance=0.0)


def kept_bytes(block: ResidualBlock, x: Tensor) -> int:
    """Bytes of distinct memory that autograd holds between forward and backward."""
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block.branch(x.requires_grad_())
    return sum(held.values())


def test_memory_grows_with_tokens_not_with_chunks_weights() -> None:
    plan = tiny_plan(
        seq_length=192, kv_channels=16, memory_expansion=4, memory_chunk_size=4, memory_persistent_tokens=0, **LMM
    )
    block = build(plan, local_weights(plan))
    x = random_input(plan, batch=1, length=192)
    state_bytes = 8 * 4 * 16 * 64 * 8  # heads x (W and S of two layers) x elements
    memory_of(block).segment_chunks = 100
    every_chunk = kept_bytes(block, x)
    memory_of(block).segment_chunks = 8
    segments = kept_bytes(block, x)
    assert every_chunk > 48 * state_bytes
    assert segments < every_chunk / 3
    assert segments - kept_bytes(block, x[:, :96].detach()) < every_chunk / 5


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize(
    ("length", "seen", "window"), [(7, 7, 10), (7, 7, 3), (9, 9, 1), (1, 9, 4), (4, 9, 2), (5, 9, 9)]
)
def test_a_query_sees_the_persistent_keys_and_its_window(length: int, seen: int, window: int, persistent: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, length, 8, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(2, 2, persistent + seen, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    found = attend_window(q, k, v, persistent, window)
    for row in range(length):
        own = seen - length + row
        visible = [*range(persistent), *(persistent + key for key in range(max(0, own - window + 1), own + 1))]
        for head in range(4):
            keys, values = k[:, head // 2, visible], v[:, head // 2, visible]
            shares = (torch.einsum("bh,bkh->bk", q[:, head, row], keys) / 8**0.5).softmax(-1)
            expected = torch.einsum("bk,bkh->bh", shares, values)
            torch.testing.assert_close(found[:, head, row], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [LMM, MAG], ids=["lmm", "mag"])
def test_a_cache_reads_on_and_never_back(kind: dict[str, Any]) -> None:
    plan = tiny_plan(**kind)
    block = build(plan, local_weights(plan))
    x = random_input(plan, length=4)
    cache = block.new_cache(2, 8)
    with torch.no_grad():
        block.branch(x, cache=cache, position=0)
        with pytest.raises(PlanError, match="cache position = 2 does not follow on the 4 tokens that were read"):
            block.branch(x, cache=cache, position=2)


@pytest.mark.parametrize("kind", [LMM, MAG], ids=["lmm", "mag"])
def test_bfloat16_stays_near_float32_with_states_in_float32(kind: dict[str, Any]) -> None:
    plan = tiny_plan(**kind)
    weights, x = local_weights(plan), random_input(plan)
    exact = build(plan, weights, torch.float32).branch(x.float())
    low = build(plan, weights, torch.bfloat16)
    cache = low.new_cache(2, 8)
    with torch.no_grad():
        coarse = low.branch(x.bfloat16(), cache=cache, position=0)
    assert coarse.dtype == torch.bfloat16
    state = (cache if kind is LMM else cache.memory).state
    assert {tensor.dtype for tensor in state} == {torch.float32}
    assert (coarse.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("kind", [LMM, MAG], ids=["lmm", "mag"])
@pytest.mark.parametrize("logit", [-30.0, 30.0])
@pytest.mark.parametrize("gate", ["step", "momentum", "forget"])
def test_extreme_gates_stay_finite(gate: str, logit: float, kind: dict[str, Any]) -> None:
    plan = tiny_plan(**kind)
    weights = local_weights(plan)
    weights[f"memory.{gate}.bias"] = torch.full((8, 2), logit, dtype=torch.float64)
    block = build(plan, weights, torch.float32)
    x = random_input(plan, length=40).float().requires_grad_()
    block.branch(x).sum().backward()
    gradients = [x.grad, *(parameter.grad for name, parameter in block.named_parameters() if name != "norm.weight")]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.slow
@pytest.mark.skipif("TLM_SLOW_TESTS" not in os.environ, reason="torch's compiler takes a minute; set TLM_SLOW_TESTS=1")
def test_a_compiled_chunk_computes_the_same() -> None:
    """In a process of its own: compiling starts threads, which forked ranks do not survive."""
    ended = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    if "cannot compile" in ended.stdout:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stderr[-2000:]


COMPILED = """
import sys
sys.modules.setdefault("z3", None)  # a half-installed z3 breaks torch's compiler, which can do without
import torch
from megatron_tlm.layers.memory import MemorySizes, NeuralMemory
from megatron_tlm.layers.placement import Placement
torch.set_num_threads(1)
try:
    torch.compile(lambda x: x + 1)(torch.ones(2))
except Exception as error:
    print("torch cannot compile here:", str(error).splitlines()[0])
    raise SystemExit(0)
sizes = MemorySizes(8, 2, 4, 8, 4, 4, 0.1)
memory = NeuralMemory(sizes, Placement(dtype=torch.float64))
for index, parameter in enumerate(memory.parameters()):
    torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(index))
x = torch.randn(2, 18, 8, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
results = []
for compiled in (False, True):
    memory.compiled = compiled
    memory.zero_grad()
    y = memory(x, None, None, None)
    y.square().sum().backward()
    results.append([y.detach(), *(parameter.grad.clone() for parameter in memory.parameters())])
for ours, theirs in zip(*results, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
"""
