"""Pages stand alone, and nothing that is put into one can become markup."""

import re
from html.parser import HTMLParser

from megatron_tlm.report.page import Html, badge, element, fold, page, searchable, section, table, text, tiles

EVIL = "<script>alert('x')</script>&\""


class Outline(HTMLParser):
    """Tags in order, and whether each that was opened was closed."""

    EMPTY = frozenset({"meta", "input", "br"})

    def __init__(self, made: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(made)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_whatever_is_text_is_escaped_everywhere() -> None:
    made = page(
        EVIL,
        section(EVIL, table([EVIL], [[EVIL]]), fold(EVIL, EVIL), searchable(EVIL, EVIL), note=EVIL),
        tiles([(EVIL, EVIL, EVIL)]),
        badge(EVIL),
        element("p", EVIL, title=EVIL),
        subtitle=EVIL,
    )
    assert "<script>alert" not in made
    assert made.count("&lt;script&gt;") == 18
    outline = Outline(made)
    assert outline.open == []
    assert outline.tags.count("script") == 1


def test_markup_is_put_in_as_it_stands() -> None:
    assert element("p", Html("<b>x</b>"), " & y") == "<p><b>x</b> &amp; y</p>"
    assert text(text("<")) == "&lt;"
    assert element("p", "x", _class="a", data_x=1) == '<p class="a" data-x="1">x</p>'


def test_a_page_needs_nothing_from_elsewhere() -> None:
    made = page("t", section("s", table(["a", "b"], [[1, None]], right=[0])))
    assert not re.search(r"https?://|src=|@import|url\(", made)
    assert "default-src 'none'" in made
    assert '<td class="number">1</td><td></td>' in made
