"""Foreign names lead to flags that exist, and hide none."""

import pytest

from megatron_tlm.cli.options import config_parser
from megatron_tlm.cli.preprocess import add_arguments
from megatron_tlm.config.hints import ALSO_CALLED, NO_FLAG, other_name
from megatron_tlm.config.parser import Parser, program

TRAIN = config_parser("train", "", "")


def test_every_name_leads_to_a_flag_of_some_command() -> None:
    other = Parser(prog=program("preprocess"))
    add_arguments(other)
    elsewhere = {"--prompt", "--max-new-tokens", "--target-tensor-parallel-size", "--target-pipeline-parallel-size"}
    known = {*TRAIN.visible_flags(), *other.visible_flags(), *elsewhere}
    assert {name for name in ALSO_CALLED if other_name(name, known) is None} == set()


def test_no_foreign_name_is_a_flag_of_ours() -> None:
    assert not (set(NO_FLAG) | set(ALSO_CALLED)) & set(TRAIN.visible_flags())


@pytest.mark.parametrize(
    ("known", "meant"),
    [
        (("--tensor-model-parallel-size",), "--tensor-model-parallel-size"),
        (("--target-tensor-parallel-size",), "--target-tensor-parallel-size"),
        (("--prompt",), None),
    ],
)
def test_a_name_means_what_the_command_has(known: tuple[str, ...], meant: str | None) -> None:
    assert other_name("--tp", known) == meant
