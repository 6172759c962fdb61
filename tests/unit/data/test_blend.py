"""Blends: what a user may write, and whose turn it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.data import blend as blend_module
from megatron_tlm.data.blend import Blend, BlendedDataset, BlendState, parse_blend
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.errors import DataError


def mocks(count: int) -> list[MockDataset]:
    return [MockDataset(1000, 4, 50, seed) for seed in range(count)]


def test_a_single_prefix_is_no_blend() -> None:
    assert parse_blend(["a"]) == Blend(("a",), None)


@pytest.mark.parametrize("words", [["3", "a", "1", "b"], ["3 a 1 b"], ["0.75", "a", "0.25", "b"]])
def test_weights_are_normalised(words: list[str]) -> None:
    assert parse_blend(words) == Blend(("a", "b"), (0.75, 0.25))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"\(\) names no corpus; give a prefix"),
        ([" "], r"\(' ',\) names no corpus; give a prefix"),
        (["0.5", "a", "b"], "'0.5 a b' has 3 words where weights and prefixes come in pairs"),
        (["a", "b"], "'a' is no number, as the weight of 'b' must be"),
        (["-1", "a", "2", "b"], "weight -1 of 'a' is not above 0"),
        (["nan", "a", "2", "b"], "weight nan of 'a'"),
        (["inf", "a", "2", "b"], "weight inf of 'a'"),
        (["1", "a", "0", "b"], "weight 0 of 'b' is not above 0"),
        (["1e308", "a", "1e308", "b"], "weights from 1e\\+308 to 1e\\+308 are too far apart or too large to be shares"),
        (["1e-320", "a", "1e300", "b"], "weights from .*e-321 to 1e\\+300 are too far apart"),
        (["1", "a", "2", "a"], "'a' is given 2 times"),
        (["1", "a", "2", "b", "3", "./a.bin"], "'a' is given 2 times"),
    ],
)
def test_what_is_no_blend_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"^data.data_path = .*{message}"):
        parse_blend(words)


def test_sizes_have_megatrons_surplus() -> None:
    blend = parse_blend(["0.7", "a", "0.3", "b"])
    assert blend.targets(1000) == (700, 300)
    assert blend.sizes(1000) == (704, 302)


# Weights -> dataset of each of the first samples, from megatron-core 0.16.1; the latter two are full of ties.
GOLDEN_ORDERS = {
    (3, 1.5, 10): [2, 0, 2, 1, 2, 2, 0, 2, 2, 2, 0, 2, 2, 1, 2, 2, 0, 2, 2, 2],
    (1, 1, 1): [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2],
    (2, 1, 1): [0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0],
}


@pytest.mark.parametrize("weights", GOLDEN_ORDERS)
def test_the_order_is_megatrons(weights: tuple[float, ...]) -> None:
    order = GOLDEN_ORDERS[weights]
    words = [word for weight, prefix in zip(weights, "abc", strict=True) for word in (str(weight), prefix)]
    dataset = BlendedDataset(mocks(3), parse_blend(words).weights or (), len(order))
    assert [dataset.source(i)[0] for i in range(len(order))] == order


@settings(max_examples=30)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 300))
def test_every_corpus_is_read_in_order_and_by_weight(weights: list[int], size: int) -> None:
    shares = (np.array(weights) / sum(weights)).tolist()
    dataset = BlendedDataset(mocks(len(weights)), shares, size)
    taken = [0] * len(weights)
    for sample in range(size):
        which, inner = dataset.source(sample)
        assert inner == taken[which]
        taken[which] += 1
        assert dataset[sample].tolist() == dataset.datasets[which][inner].tolist()
    assert all(abs(n - share * size) <= len(weights) for n, share in zip(taken, shares, strict=True))


def test_the_order_does_not_depend_on_how_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BlendedDataset(mocks(3), (0.5, 0.3, 0.2), 100)
    expected = [whole.source(i) for i in range(100)]
    monkeypatch.setattr(blend_module, "BLOCK", 7)
    late = BlendedDataset(mocks(3), (0.5, 0.3, 0.2), 100)
    assert late.source(99) == expected[99]
    assert [late.source(i) for i in range(100)] == expected


def test_a_long_blend_keeps_few_places_and_finds_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend_module, "BLOCK", 7)
    monkeypatch.setattr(blend_module, "ROWS", 3)
    monkeypatch.setattr(blend_module, "STATE_EVERY", 10)
    weights = (0.5, 0.3, 0.2)
    dataset = BlendedDataset(mocks(3), weights, 7 * 100)
    counted = [0, 0, 0]
    for sample in range(7 * 100):  # Megatron's loop
        errors = [weight * max(sample, 1) - count for weight, count in zip(weights, counted, strict=True)]
        which = errors.index(max(errors))
        assert dataset.source(sample) == (which, counted[which])
        counted[which] += 1
    assert len(dataset._states) <= 10 + blend_module.KEPT_BLOCKS + 1
    again = BlendedDataset(mocks(3), weights, 7 * 100)
    assert [dataset.source(sample) for sample in (333, 0, 699)] == [again.source(sample) for sample in (333, 0, 699)]
    assert dataset.taken(699) == again.taken(699)


def test_a_sample_beyond_the_blend() -> None:
    with pytest.raises(IndexError, match=r"sample = 5 is outside 0\.\.4"):
        BlendedDataset(mocks(2), (0.5, 0.5), 5)[5]


def test_an_order_is_taken_up_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend_module, "BLOCK", 7)
    weights = (0.5, 0.3, 0.2)
    whole = BlendedDataset(mocks(3), weights, 200)
    expected = [whole.source(i) for i in range(200)]
    state = whole.state(100)
    assert state.position == 98
    later = BlendedDataset(mocks(3), weights, 200, state=BlendState.from_text(state.to_text()))
    assert [later.source(i) for i in range(100, 200)] == expected[100:]
    assert [later.source(i) for i in range(200)] == expected  # an earlier sample is there as well
    for sample in (0, 1, 7, 50, 98, 100, 199):
        counts = tuple(sum(which == dataset for which, _ in expected[:sample]) for dataset in range(3))
        assert whole.taken(sample) == later.taken(sample) == counts


@pytest.mark.parametrize("text", ["", "x", "7 7", "7 1 2 3", "7 7 0 0", "8 4 2 2", "-7 1 1 1"])
def test_a_state_that_cannot_be_is_not_used(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(blend_module, "BLOCK", 7)
    weights = (0.5, 0.3, 0.2)
    expected = [BlendedDataset(mocks(3), weights, 50).source(i) for i in range(50)]
    state = BlendState.from_text(text)
    assert [BlendedDataset(mocks(3), weights, 50, state=state).source(i) for i in range(50)] == expected
