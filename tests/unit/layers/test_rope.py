import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.layers.rope import RotaryEmbedding, rope_table
from tests import oracle

CPU = torch.device("cpu")


def random_heads(length: int, dtype: torch.dtype = torch.float64, heads: int = 3, width: int = 8) -> torch.Tensor:
    return torch.randn(2, length, heads, width, generator=torch.Generator().manual_seed(length), dtype=dtype)


def test_rotation_is_a_complex_product() -> None:
    x = random_heads(7)
    turned, _ = RotaryEmbedding(8, 10000.0)(x, x)
    for head in range(3):
        torch.testing.assert_close(turned[:, :, head], oracle.rotate(x[:, :, head], 10000.0), rtol=1e-14, atol=1e-14)


@given(position=st.integers(0, 50), length=st.integers(1, 9))
def test_a_chunk_is_turned_as_in_the_whole(position: int, length: int) -> None:
    x = random_heads(60)
    rotary = RotaryEmbedding(8, 500.0)
    chunk, _ = rotary(x[:, position : position + length], x[:, position : position + length], position)
    whole, _ = RotaryEmbedding(8, 500.0)(x, x)
    assert torch.equal(chunk, whole[:, position : position + length])


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = random_heads(1), random_heads(1) + 1
    rotary = RotaryEmbedding(8, 10000.0)
    near = (rotary(q, k, 5)[0] * rotary(q, k, 2)[1]).sum(-1)
    far = (rotary(q, k, 1005)[0] * rotary(q, k, 1002)[1]).sum(-1)
    torch.testing.assert_close(near, far, rtol=1e-12, atol=1e-12)


def test_angles_are_float32_for_bfloat16_and_float64_for_float64() -> None:
    rotary = RotaryEmbedding(8, 10000.0)
    coarse, exact = random_heads(4000, torch.bfloat16), random_heads(4000)
    turned, _ = rotary(coarse, coarse)
    assert turned.dtype == torch.bfloat16
    reference, _ = rotary(coarse.double(), coarse.double())
    # bfloat16 angles would be wrong by whole turns at position 4000; one rounding of the result is 2^-9.
    torch.testing.assert_close(turned.double(), reference, rtol=2**-8, atol=4e-3)
    assert rotary(exact, exact)[0].dtype == torch.float64


def test_float32_table_is_hugging_faces_to_the_bit() -> None:
    cos, sin = rope_table(3000, 64, 10000.0, torch.float32, CPU)
    inverse = 1.0 / (10000.0 ** (torch.arange(0, 64, 2, dtype=torch.int64).float() / 64))
    angles = (inverse[:, None] @ torch.arange(3000).float()[None]).T
    assert torch.equal(cos[:, 0], angles.cos())
    assert torch.equal(sin[:, 0], angles.sin())


def test_training_works_after_a_table_was_made_in_inference_mode() -> None:
    rotary = RotaryEmbedding(8, 10000.0)
    with torch.inference_mode():
        rotary(random_heads(5), random_heads(5))
    x = random_heads(5).requires_grad_()
    rotary(x, x)[0].sum().backward()
    assert x.grad is not None


def test_decoding_extends_the_table_seldom() -> None:
    rotary, tables = RotaryEmbedding(8, 10000.0), set()
    x = random_heads(1)
    for position in range(100):
        rotary(x, x, position)
        assert rotary._table is not None
        tables.add(rotary._table[0].shape[0])
    assert len(tables) <= 8
