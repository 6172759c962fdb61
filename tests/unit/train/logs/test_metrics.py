"""Speeds, peaks, and numbers as people read them."""

import math

import pytest

from megatron_tlm.train.logs.metrics import duration, flop_rate, measure, peak_tflops, perplexity, short


def test_speed_is_arithmetic() -> None:
    speed = measure(1000, 2.0, flops_per_token=6_000_000_000, num_devices=3, peak=10.0)
    assert speed.tokens_per_second == 500
    assert speed.tflops_per_device == pytest.approx(1.0)
    assert speed.mfu == pytest.approx(0.1)
    assert measure(1, 1.0, flops_per_token=1, num_devices=1, peak=None).mfu is None


def test_the_unit_of_a_rate_fits_it() -> None:
    rates = (412.34, 1.0, 0.9996, 0.0123, 0.00061, 0.0)
    assert [flop_rate(rate) for rate in rates] == [
        "412 TFLOP/s",
        "1 TFLOP/s",
        "1 TFLOP/s",
        "12.3 GFLOP/s",
        "610 MFLOP/s",
        "0 FLOP/s",
    ]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GB200", 2500.0),
        ("Some CPU", None),
    ],
)
def test_a_device_is_known_by_part_of_its_name(name: str, peak: float | None) -> None:
    assert peak_tflops(name) == peak


def test_perplexity_does_not_overflow() -> None:
    assert perplexity(2.0) == pytest.approx(math.e**2)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_times_and_magnitudes_are_short() -> None:
    assert duration(3661.4) == "01:01:01"
    assert duration(2 * 86400 + 59.6) == "2d 00:01:00"
    assert [short(value) for value in (0.0, 12.34, 999.4, 12345, 4.56e6, 1.3e9, 2e12)] == [
        "0", "12.3", "999", "12.3k", "4.56M", "1.3G", "2T",
    ]  # fmt: skip
