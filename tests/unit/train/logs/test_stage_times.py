"""Marks behind instructions, and what of a message was waiting: on a made-up engine and a made-up clock."""

from types import SimpleNamespace

import numpy as np
import pytest

from megatron_tlm.plan.measured import PipelineSeconds, StageSeconds
from megatron_tlm.train.logs.stage_times import KINDS, MESSAGES, Recorder, line, split_messages


class Ticking:
    """A clock that an instruction moves on by hand."""

    def __init__(self):
        self.now = 0.0

    def mark(self):
        return self.now

    def seconds(self, begin, end):
        return end - begin


INSTRUCTIONS = {name: type(name, (), {}) for name in KINDS}


def take_time(engine, seconds=0.0, buffer_id=None):
    engine.clock.now += seconds
    engine.done.append(buffer_id)


class Engine:
    """Looks instructions up as DeepSpeed's does: in a table of the class, bound when they run."""

    def __init__(self, clock):
        self.module = SimpleNamespace(training=True)
        self.done = []
        self.clock = clock

    _INSTRUCTION_MAP = dict.fromkeys(INSTRUCTIONS.values(), take_time)

    def run(self, *steps):
        for name, seconds in steps:
            self._INSTRUCTION_MAP[INSTRUCTIONS[name]](self, seconds=seconds, buffer_id=len(self.done))


STEP = (("LoadMicroBatch", 1.0), ("ForwardPass", 2.0), ("SendActivation", 0.5), ("ForwardPass", 3.0))
TAIL = (("BackwardPass", 4.0), ("ReduceGrads", 0.25), ("OptimizerStep", 0.125))


def test_an_instruction_lasts_from_mark_to_mark_and_the_first_step_is_left_out():
    clock = Ticking()
    engine = Engine(clock)
    recorder = Recorder(engine, clock, most=4)
    for _ in range(3):
        engine.run(*STEP, *TAIL)
        clock.now += 100  # between steps
    taken = recorder.take()
    assert len(taken) == 2
    assert taken[0]["forward"] == [2.0, 3.0]
    assert {kind: sum(values) for kind, values in taken[1].items() if values} == {
        "load": 1.0, "forward": 5.0, "send_activation": 0.5, "backward": 4.0, "reduce": 0.25, "update": 0.125,
    }  # fmt: skip
    assert recorder.take() == []
    assert engine.done == list(range(21)), "every instruction ran, with its arguments"


def test_the_last_steps_are_kept():
    clock = Ticking()
    engine = Engine(clock)
    recorder = Recorder(engine, clock, most=2)
    for index in range(5):
        engine.run(("ForwardPass", float(index)), ("OptimizerStep", 0.0))
    assert [step["forward"] for step in recorder.take()] == [[3.0], [4.0]]


def test_an_evaluation_is_not_counted():
    clock = Ticking()
    engine = Engine(clock)
    recorder = Recorder(engine, clock, most=4)
    for _ in range(2):
        engine.run(*STEP, *TAIL)
        engine.module.training = False
        engine.run(*STEP)
        engine.module.training = True
    assert [step["forward"] for step in recorder.take()] == [[2.0, 3.0]]
    assert len(engine.done) == 2 * len((*STEP, *TAIL, *STEP))


def test_only_the_engine_that_is_looked_at_is_changed():
    clock = Ticking()
    before = dict(Engine._INSTRUCTION_MAP)
    Recorder(Engine(clock), clock, most=1)
    assert before == Engine._INSTRUCTION_MAP


def test_deepspeeds_instructions_are_all_known():
    engine = pytest.importorskip("deepspeed.runtime.pipe.engine")
    assert {item.__name__ for item in engine.PipelineEngine._INSTRUCTION_MAP} == set(KINDS)


def test_of_a_messages_two_ends_the_shorter_one_did_not_wait():
    messages = np.zeros((3, 1, len(MESSAGES), 2))
    messages[0, 0, MESSAGES.index("send_activation")] = [5.0, 1.0]
    messages[1, 0, MESSAGES.index("receive_activation")] = [2.0, 4.0]
    messages[1, 0, MESSAGES.index("send_gradient")] = [1.0, 1.0]
    messages[0, 0, MESSAGES.index("receive_gradient")] = [1.5, 3.0]
    messages[1, 0, MESSAGES.index("send_activation")] = [1.0, 1.0]
    messages[2, 0, MESSAGES.index("receive_activation")] = [1.0, 7.0]
    assert split_messages(messages, 0) == (2 + 1 + 1 + 1, 3 + 0 + 0.5 + 2)
    assert split_messages(messages, 1) == (2 + 1 + 1 + 1 + 1 + 1, 0 + 3 + 0 + 0 + 0 + 0)
    assert split_messages(messages, 2) == (1 + 1, 0 + 6)


def test_the_console_shows_every_stage_of_a_few_and_the_ends_of_many():
    slow = [StageSeconds(0, 6.0, 12.04, 0.001, 0.04, 0.05, 0.06)] * 2
    assert line(PipelineSeconds(9, 4, 0.4, tuple(slow), (3, 3)), 0.2).startswith("stages: compute 18040 18040 ms | ")
    few = [StageSeconds(0, 0.1, 0.2, 0.001, 0.04, 0.05, 0.06), StageSeconds(0, 0.11, 0.22, 0.001, 0.01, 0.05, 0.06)]
    assert line(PipelineSeconds(9, 4, 0.4, tuple(few), (3, 3)), 0.2) == (
        "stages: compute 300 330 ms | wait 40 10 ms | messages 1 1 ms | bubble measured 21.2 % (planned 20.0 %)"
    )
    many = line(PipelineSeconds(9, 4, 0.4, tuple(few * 5), (3,) * 10), 0.2)
    assert many.startswith("stages: compute 300 to 330 ms | wait 10 to 40 ms | messages 1 to 1 ms")
