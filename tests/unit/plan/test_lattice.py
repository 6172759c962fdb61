import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.plan.lattice import StageTicks, pipeline_ends, step_times
from megatron_tlm.plan.simulate import StageTime, simulate

TICKS = st.integers(0, 50)


@given(data=st.data(), num_stages=st.integers(1, 7), micro_batches=st.integers(1, 12))
def test_equals_the_simulator(data, num_stages, micro_batches):
    row = st.lists(st.builds(StageTime, TICKS, TICKS, TICKS, TICKS), min_size=num_stages, max_size=num_stages)
    cuts = data.draw(st.lists(row, min_size=1, max_size=3))
    message, tied = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    fields = ("forward", "backward", "reduce", "update")
    ticks = StageTicks(*(np.array([[getattr(stage, f) for stage in cut] for cut in cuts]) for f in fields))
    expected = [simulate(cut, micro_batches, message=message, tied=tied) for cut in cuts]
    assert step_times(ticks, micro_batches, message=message, tied=tied).tolist() == [t.step_time for t in expected]
    ends = pipeline_ends(ticks.forward, ticks.backward, micro_batches, message)
    for cut, timeline in enumerate(expected):
        for stage in range(num_stages):
            last = max(e.end for e in timeline.stage_events(stage) if e.kind in ("backward", "send_gradient"))
            assert ends[cut, stage] == last
