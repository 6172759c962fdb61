from dataclasses import replace

import pytest

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.hardware import HARDWARE, Profile, UnitSeconds, find_hardware, load_profile, parse_bytes

PROFILE = Profile(
    device="here",
    seq_length=8,
    micro_batch_size=1,
    tensor_degree=1,
    bf16=False,
    recompute=None,
    hidden_size=4,
    units=(
        UnitSeconds("mixer", None, 1.0, 2.0),
        UnitSeconds("mlp", 10, 1.0, 3.0),
        UnitSeconds("mlp", 20, 2.0, 5.0),
        UnitSeconds("mlp", 40, 6.0, 7.0),
    ),
)


def test_a_profile_survives_its_file(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == PROFILE


@pytest.mark.parametrize(
    ("width", "seconds"), [(10, (1, 3)), (15, (1.5, 4)), (30, (4, 6)), (50, (8, 8)), (5, (0.5, 2))]
)
def test_widths_in_between_lie_on_the_line(width, seconds):
    assert PROFILE.seconds("mlp", width) == pytest.approx(seconds)


def test_other_kinds_have_one_time():
    assert PROFILE.seconds("mixer", None) == (1.0, 2.0)
    assert replace(PROFILE, units=PROFILE.units[:2]).seconds("mlp", 99) == (1.0, 3.0)
    with pytest.raises(PlanError, match="profile of here holds 0 units of kind head"):
        PROFILE.seconds("head", None)


def test_what_a_run_measured_of_a_unit_is_its_own():
    named = (UnitSeconds("mixer", None, 8.0, 9.0, "layers.1.mixer"), UnitSeconds("mlp", 20, 3.0, 4.0, "layers.1.mlp"))
    profile = replace(PROFILE, units=PROFILE.units + named)
    assert profile.seconds("mixer", None, "layers.1.mixer") == (8.0, 9.0)
    assert profile.seconds("mixer", None, "layers.2.mixer") == ((1 + 8) / 2, (2 + 9) / 2)
    assert profile.seconds("mlp", 20, "layers.1.mlp") == (3.0, 4.0)
    # Of another width it is another unit, and one of many of its kind.
    assert profile.seconds("mlp", 10, "layers.1.mlp") == (1.0, 3.0)
    assert profile.seconds("mlp", 20, "layers.5.mlp") == ((2 + 3) / 2, (5 + 4) / 2)


def test_a_message_takes_its_latency_and_its_bytes():
    assert PROFILE.message_seconds(100) is None
    assert replace(PROFILE, message_latency=0.5, message_bandwidth=200.0).message_seconds(100) == 1.0


def test_what_is_no_profile_or_no_device_is_said(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        load_profile(tmp_path / "absent.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(PlanError, match="is no profile"):
        load_profile(tmp_path / "other.json")
    with pytest.raises(PlanError, match=r"hardware = 'abacus' is not among the \d known; use a100"):
        find_hardware("abacus")


def test_far_ranks_talk_over_the_network():
    for device in HARDWARE.values():
        assert device.bandwidth(device.devices_per_node) >= device.bandwidth(device.devices_per_node + 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("80GiB", 80 * 2**30), ("80 GB", 80 * 10**9), ("1.5g", 15 * 10**8), ("2MiB", 2**21), ("7b", 7)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "80 bananas", "1e9"])
def test_what_is_no_size(text):
    with pytest.raises(PlanError, match=r"gpu_memory = .* is no size above 0"):
        parse_bytes(text)
