import pytest

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds, read_scalars

TIMES = PipelineSeconds(
    steps=5,
    micro_batches=8,
    seconds=2.0,
    stages=(StageSeconds(0.1, 0.5, 1.0, 0.1, 0.3, 0.2, 0.05), StageSeconds(0.0, 0.3, 0.7, 0.1, 0.9, 0.1, 0.05)),
    units=(4, 6),
)


def test_a_line_of_metrics_gives_back_what_was_written():
    record = {"step": 20, "loss": 4.2, **TIMES.scalars()}
    assert read_scalars(record) == TIMES
    assert record["stage-forward/1"] == 0.3
    assert record["pipeline-bubble"] == pytest.approx((0.25 + 0.5) / 2)
    assert record["stage-bubble/1"] == pytest.approx(0.5)


def test_stages_are_ranges_of_units():
    assert TIMES.ranges == (range(4), range(4, 10))


def test_a_line_without_stages_is_none_and_half_of_one_is_refused():
    assert read_scalars({"step": 3, "loss": 4.0}) is None
    record = {"step": 20, **TIMES.scalars()}
    del record["stage-wait/1"]
    with pytest.raises(PlanError, match=r"metrics of step 20 = 2 stages without all of their times \('stage-wait/1'\)"):
        read_scalars(record)
    with pytest.raises(PlanError, match="metrics of step 20"):
        read_scalars({"step": 20, **TIMES.scalars(), "stage-wait/0": None})
    with pytest.raises(PlanError, match="metrics of step 20 = 0 stages without all of their times"):
        read_scalars({"step": 20, "pipeline-seconds": 1.0, "pipeline-steps": 1.0, "pipeline-micro-batches": 1.0})
    with pytest.raises(PlanError, match="metrics of step 20"):
        read_scalars({"step": 20, **TIMES.scalars(), "pipeline-steps": float("inf")})


def test_nothing_run_is_no_bubble():
    assert PipelineSeconds(1, 1, 0.0, (StageSeconds(0, 0, 0, 0, 0, 0, 0),), (3,)).mean_bubble == 0
