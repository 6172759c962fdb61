"""Findings, and the sentence that they come to."""

import pytest

from megatron_tlm.doctor.finding import (
    Finding,
    failed,
    healthy,
    merged,
    passed,
    refused,
    skipped,
    table,
    verdict,
    warned,
)
from megatron_tlm.errors import ConfigError

GOOD, ODD, BAD = (
    passed("python", "3.12"),
    warned("clock", "2 s ahead", "start ntpd"),
    failed("disk", "full", "make room"),
)


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        ([GOOD, GOOD], "ready: 2 of 2 checks passed"),
        ([GOOD, ODD], "ready, with a warning: clock: 2 s ahead; start ntpd"),
        ([ODD, ODD], "ready, with a warning: clock: 2 s ahead; start ntpd (and 1 more, above)"),
        ([ODD, BAD], "not ready: disk: full; make room"),
        ([BAD, GOOD, BAD], "not ready: disk: full; make room (and 1 more to mend, above)"),
        ([skipped("step", "no plan"), BAD], "not ready: disk: full; make room"),
        ([skipped("step", "no plan"), GOOD], "ready: 1 of 1 checks passed"),
    ],
)
def test_the_verdict_is_the_worst_and_what_to_do(findings: list[Finding], sentence: str) -> None:
    assert verdict(findings) == sentence
    assert healthy(findings) is not sentence.startswith("not")


def test_a_refusal_of_the_package_is_text_and_remedy() -> None:
    error = ConfigError("a = 1 is\nbelow 2; give 2")
    assert refused("configuration", error) == failed("configuration", "a = 1 is below 2", "give 2")
    assert refused("configuration", ValueError("odd")).remedy == "mend that and look again"


def test_rows_that_do_not_pass_say_what_to_do() -> None:
    assert table([GOOD, BAD]) == "pass  python  3.12\nfail  disk    full\n              -> make room"
    assert table([skipped("step", "not tried")]) == "skip  step  not tried"


def test_nodes_that_found_the_same_share_a_row() -> None:
    rows = merged([("a", [GOOD, ODD]), ("b", [GOOD, passed("clock", "right")]), ("c", [GOOD, ODD])])
    assert rows == [
        GOOD,
        Finding("clock", "warn", "2 s ahead", "start ntpd", ("a", "c")),
        Finding("clock", "pass", "right", "", ("b",)),
    ]
    assert verdict(rows) == "ready, with a warning: clock [a, c]: 2 s ahead; start ntpd"
    assert [Finding.from_json(row.to_json()) for row in rows] == rows


def test_many_nodes_are_counted() -> None:
    rows = merged([(f"n{number}", [ODD]) for number in range(5)] + [("rest", [GOOD])])
    assert "[n0, n1, n2 and 2 more]" in verdict(rows)
