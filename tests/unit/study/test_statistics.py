"""Student's interval against known quantiles and a hand computation."""

import math

import pytest

from megatron_tlm.study.results import paired
from megatron_tlm.study.statistics import interval, t_probability, t_quantile


# Any table of Student's t, two-sided.
@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 9, 2.2622),
        (0.95, 30, 2.0423),
        (0.95, 1000, 1.9623),
        (0.99, 4, 4.6041),
        (0.9, 7, 1.8946),
    ],
)
def test_quantiles(confidence: float, degrees: int, expected: float) -> None:
    assert t_quantile(confidence, degrees) == pytest.approx(expected, abs=1e-4)
    assert t_probability(t_quantile(confidence, degrees), degrees) == pytest.approx(confidence)


def test_an_interval_by_hand() -> None:
    found = interval([-0.10, -0.20, -0.30])
    assert found.mean == pytest.approx(-0.2)
    assert found.spread == pytest.approx(0.1)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert not found.excludes_zero
    assert interval([-0.19, -0.20, -0.21]).excludes_zero


def test_one_value_has_no_interval() -> None:
    found = interval([0.5])
    assert (found.mean, found.half_width, found.spread, found.excludes_zero) == (0.5, None, None, False)


def test_pairs_are_by_seed_and_only_those_that_both_have() -> None:
    found = paired({1: 3.0, 2: 4.0, 3: 9.0}, {2: 4.5, 1: 3.1})
    assert found is not None
    assert (found.count, found.mean) == (2, pytest.approx(-0.3))
    assert found.spread == pytest.approx(0.4 / math.sqrt(2))  # of -0.1 and -0.5
    assert paired({1: 3.0}, {2: 3.0}) is None
