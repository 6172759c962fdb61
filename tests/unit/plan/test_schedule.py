import pytest

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.schedule import num_steps, stage_steps

DEEPSPEED_NAMES = {
    "SendGrad": "send_gradient",
    "RecvActivation": "receive_activation",
    "RecvGrad": "receive_gradient",
    "SendActivation": "send_activation",
    "LoadMicroBatch": "load",
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "ReduceTiedGrads": "reduce_tied",
    "ReduceGrads": "reduce",
    "OptimizerStep": "update",
}


@pytest.mark.parametrize("num_stages", range(1, 8))
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8, 13])
def test_instructions_are_those_of_deepspeed(num_stages, micro_batches):
    schedule = pytest.importorskip("deepspeed.runtime.pipe.schedule")
    for stage in range(num_stages):
        theirs = list(schedule.TrainSchedule(micro_batches=micro_batches, stages=num_stages, stage_id=stage))
        ours = list(stage_steps(stage, num_stages, micro_batches))
        assert [[DEEPSPEED_NAMES[type(command).__name__] for command in step] for step in theirs] == [
            [instruction.kind for instruction in step] for step in ours
        ]
        buffers = max(2, min(num_stages - stage, micro_batches))
        for commands, step in zip(theirs, ours, strict=True):
            slots = [getattr(command, "buffer_id", None) for command in commands]
            assert slots == [None if i.micro_batch is None else i.micro_batch % buffers for i in step]


def test_number_of_steps():
    assert len(list(stage_steps(1, 3, 4))) == num_steps(3, 4) == 12


def test_no_such_stage():
    with pytest.raises(PlanError, match=r"stage = 3 of 3 .* 0\.\.2"):
        list(stage_steps(3, 3, 1))
