"""What a line says, and what is wrong with a bad one."""

import json

import pytest

from megatron_tlm.data.lines import BadLine, read_line
from megatron_tlm.errors import DataError

ADDRESS = "corpus.jsonl:7"


def test_several_keys_and_lists_of_texts() -> None:
    line = json.dumps({"text": ["one", "two"], "title": "three", "n": 4}).encode()
    assert read_line(line, ("title", "text"), ADDRESS) == {"title": ("three",), "text": ("one", "two")}


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b'{"text": "a"', "cut short", r"is no JSON \(Expecting ',' delimiter"),
        (b"{" * 9 + b"x" * 100, "no JSON", r"= '\{{9}x{48}\.\.\.' is no JSON"),
        (b"[" * 100_000, "no JSON", "is no JSON"),
        (b'["a"]', "no object", r"""= '\["a"\]' is no JSON object; write \{"text": \.\.\.\}"""),
        (
            b'{"id": 1, "body": "a"}',
            "missing key",
            r"= '.*' has no key 'text' among its keys \('id', 'body'\); choose the one that holds the text",
        ),
        (b"{}", "missing key", r"= '{}' has no key 'text' among its keys \(none\)"),
        (b'{"text": 5}', "no text", "= '{\"text\": 5}' holds int as 'text'; give a text or a list of texts"),
        (b'{"text": null}', "no text", "= '{\"text\": null}' holds NoneType as 'text'"),
        (b'{"text": ["a", 5]}', "no text", "holds int as 'text'"),
        (b'{"text": "\xff"}', "not UTF-8", r"= byte 0xff at offset 10 is not UTF-8"),
        (b'{"text": "ab\\ud83d"}', "surrogate", r"= lone surrogate U\+D83D at character 2"),
    ],
)
def test_a_bad_line_is_told_with_its_address(line: bytes, kind: str, message: str) -> None:
    bad = read_line(line, ("text",), ADDRESS)
    assert isinstance(bad, BadLine)
    assert (bad.kind, bad.raw) == (kind, line)
    with pytest.raises(DataError, match=f"(?s)^{ADDRESS} .*{message}"):
        raise bad.error()


def test_more_kinds_of_bad_lines() -> None:
    kinds = {
        b'{"text": "a"} {"text": "b"}': "several values",
        b'{"text": "a"}{"text": "b"}': "several values",
        b'{"text": "a", ': "cut short",
        b'{"text": ': "cut short",
        b'{"text": "ab': "cut short",
        b'{"text": nul}': "no JSON",
        b"null": "no object",
        b"\x00": "no JSON",
    }
    for line, kind in kinds.items():
        bad = read_line(line, ("text",), ADDRESS)
        assert isinstance(bad, BadLine)
        assert bad.kind == kind, line


@pytest.mark.parametrize("line", [b'{"text": "a"}\r', b'\xef\xbb\xbf{"text": "a"}', b' \t{"text": "a"} '])
def test_what_does_no_harm(line: bytes) -> None:
    assert read_line(line, ("text",), ADDRESS) == {"text": ("a",)}
