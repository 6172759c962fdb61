"""argparse without its traps: no abbreviations, both spellings, mistakes as ConfigErrors."""

import pytest

from megatron_tlm.config.parser import Parser, integer, program, real
from megatron_tlm.errors import ConfigError


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog=program("demo"))
    parser.add_argument("--input-file", nargs="+", required=True)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--config")
    return parser


def test_hyphens_and_underscores_are_one_in_names_and_kept_in_values(parser: Parser) -> None:
    args = parser.parse(["--input_file", "a_b", "c_d", "--top_p=0.5", "--config=e_f"])
    assert (args.input_file, args.top_p, args.config) == (["a_b", "c_d"], 0.5, "e_f")


def test_help_ends_well(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        parser.parse(["--help"])
    assert ending.value.code == 0
    assert "usage: megatron-tlm demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--input-file", "a", "--input", "b"],
            r"--input is not a flag of .*; did you mean --input-file\?",
        ),
        (
            ["--input-file", "a", "--zzz=1"],
            r"--zzz is not a flag of .*; see `megatron-tlm demo --help`",
        ),
        (["--input-file", "a", "--top-p", "x"], r"--top-p: invalid float value: 'x'; see `megatron-tlm demo --help`"),
        (["run.yaml", "--input-file", "a"], r"run.yaml stands without a flag; write --config run.yaml"),
        (["x", "--input-file", "a"], r"x stands without a flag; see"),
        (
            ["--input-fil", "a", "--zzz", "--top-p", "x"],
            r"3 mistakes in the flags of `megatron-tlm demo`: \(1\) --input-fil: did you mean --input-file\? "
            r"\(2\) --zzz: see .* \(3\) --top-p: invalid float",
        ),
        (["--zzz"], r"\(1\) --zzz: see .* \(2\) the following arguments are required: --input-file; see"),
        ([], r"the following arguments are required: --input-file; see"),
    ],
)
def test_a_mistake_is_a_configuration_error(parser: Parser, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parser.parse(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "0"], r"^--count = 0 is below 1; give 1 or more$"),
        (["--count", "2.5"], r"^--count = '2.5' is not an integer; write 2 without quotes, point or exponent$"),
        (["--share", "-0.5"], r"^--share = -0.5 lies outside 0..1; give one inside$"),
        (["--wait", "-1"], r"^--wait = -1 is below 0; give 0 or more$"),
        (["--wait", "nan"], r"^--wait = 'nan' is not a finite number; write one such as"),
        (
            ["--count", "0", "--zzz"],
            r"^2 mistakes .* \(1\) --zzz: see .* \(2\) --count = 0 is below 1; give 1 or more$",
        ),
    ],
)
def test_numbers_are_read_with_their_bounds(parser: Parser, words: list[str], message: str) -> None:
    parser.add_argument("--count", type=integer())
    parser.add_argument("--share", type=real(0, 1))
    parser.add_argument("--wait", type=real(0))
    assert parser.parse(["--input-file", "a", "--count", "3", "--share", "1", "--wait", "0"]).count == 3
    with pytest.raises(ConfigError, match=message):
        parser.parse(["--input-file", "a", *words])
