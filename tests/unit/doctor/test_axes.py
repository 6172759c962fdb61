"""What is made of measurements; the measuring itself is in test_rehearsal."""

from typing import Any

from megatron_tlm.doctor.axes import axis_findings

NODES = ["a", "a", "b", "b"]


def measured(*ranks: int, right: bool = True, rate: float = 2.0**30) -> dict[str, Any]:
    return {"ranks": list(ranks), "right": right, "seconds": 0.002, "bytes_per_second": rate}


def test_an_axis_is_told_by_its_slowest_group() -> None:
    told = [{"data": measured(0, 1)}, {"data": measured(0, 1)}] + [{"data": measured(2, 3, rate=2.0**29)}] * 2
    (found,) = axis_findings(told, NODES)
    assert (found.check, found.status) == ("axis data", "pass")
    assert found.text == (
        "2 ranks inside a node: sums right, 2 ms an all-reduce, 0.5 GiB/s of 8 MiB ones, the slowest of 2 groups"
    )


def test_a_group_far_below_the_others_is_named() -> None:
    told = [{"data": measured(0, 1)}] * 2 + [{"data": measured(2, 3, rate=2.0**27)}] * 2
    (found,) = axis_findings(told, NODES)
    assert found.status == "warn"
    assert found.text.endswith("the slowest of 2 groups: ranks 2, 3 (b), 8.0 times slower than the median")


def test_a_wrong_sum_is_a_failure_with_its_ranks() -> None:
    told = [{"pipe": measured(0, 2)}, {"pipe": measured(1, 3)}, {"pipe": measured(0, 2)}]
    (found,) = axis_findings([*told, {"pipe": measured(1, 3, right=False)}], NODES)
    assert (found.status, found.text) == ("fail", "an all-reduce gave a wrong sum on ranks 1, 3 (a, b)")


def test_tensor_ranks_on_two_nodes_are_a_warning() -> None:
    (found,) = axis_findings([{"tensor": measured(0, 1)}] * 2, ["a", "b"])
    assert (found.status, found.remedy[:38]) == ("warn", "keep the tensor degree within a node: ")
    assert axis_findings([{}], ["a"]) == []
