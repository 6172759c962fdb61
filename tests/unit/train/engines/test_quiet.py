"""What is swallowed, and what is not."""

import pytest

from megatron_tlm.train.engines.quiet import hushed


def test_prints_are_swallowed(capsys: pytest.CaptureFixture[str]) -> None:
    with hushed():
        print("noise")
    assert capsys.readouterr().out == ""


def speak_and_fail() -> None:
    with hushed():
        print("what led to it")
        raise ValueError("fault")


def test_an_error_brings_the_prints_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="fault"):
        speak_and_fail()
    assert capsys.readouterr().out == "what led to it\n"
