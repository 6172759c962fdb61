import pytest

from megatron_tlm.plan.memory import BUCKET_ELEMENTS, MemoryUse, TrainingState

MILLION = 10**6


@pytest.mark.parametrize(
    ("zero", "bf16", "data", "state_bytes"),
    [
        *((0, False, 2, 16), (1, False, 1, 20), (1, False, 2, 14), (2, False, 2, 12), (3, False, 2, 10)),
        *((1, True, 1, 20), (1, True, 2, 14), (2, True, 2, 10), (3, True, 2, 9)),
    ],
)
def test_bytes_per_parameter(zero, bf16, data, state_bytes):
    state = TrainingState(zero, data, bf16, pipelined=False)
    total = state.weights(MILLION) + state.gradients(MILLION) + state.optimizer(MILLION)
    assert total == state_bytes * MILLION


def test_buckets_are_those_of_training():
    config = pytest.importorskip("megatron_tlm.train.engines.deepspeed_config")
    assert config.BUCKET_ELEMENTS == BUCKET_ELEMENTS


def test_a_bucket_holds_no_more_than_there_is():
    state = TrainingState(1, 8, True, pipelined=True)
    assert state.after_buffers(MILLION) == 4 * MILLION
    assert state.after_buffers(100 * BUCKET_ELEMENTS) == 4 * BUCKET_ELEMENTS


def test_the_peak_has_activations_or_the_buffers_of_the_update():
    use = MemoryUse(weights=1, gradients=2, optimizer=3, activations=4, working=5, messages=6, buffers=7, after=8)
    assert use.total == sum(use.by_kind().values()) == 28
    after = MemoryUse(weights=1, gradients=2, optimizer=3, activations=4, working=5, messages=6, buffers=7, after=30)
    assert after.total == sum(after.by_kind().values()) == 36
    assert after.by_kind()["activations"] == 0
