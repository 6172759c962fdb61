"""A page of HTML in one file: opens in any browser without a network, readable in light and dark, and on paper.

    page("Run", section("Loss", line_chart(...)), section("Stages", table(("stage", "first"), rows)), subtitle="...")

Every function gives `Html`. What is `Html` already is put in as it stands; any other value is text, and escaped. The
page may load nothing, its own policy forbids it: a name from a stranger's run can neither run nor call home.
"""

import html
from collections.abc import Collection, Iterable, Sequence

from megatron_tlm.report.style import SCRIPT, STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class Html(str):
    """Markup."""

    __slots__ = ()


def text(value: object) -> Html:
    """The value as markup: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def element(name: str, *content: object, **attributes: object) -> Html:
    """`<name attribute="value">content</name>`; `_class` means class, `data_x` data-x."""
    given = "".join(
        f' {key.lstrip("_").replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{''.join(map(text, content))}</{name}>")


def page(title: str, *blocks: Html, subtitle: object = "") -> str:
    """The whole file. `title` heads it and names the browser's tab."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    )
    header = element("header", element("h1", title), element("p", subtitle) if subtitle else "")
    body = f"<main>{header}{''.join(blocks)}</main><script>{SCRIPT}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def section(title: str, *blocks: object, note: object = "") -> Html:
    """A part of the page under a heading; `note` is one quiet line below it."""
    return element("section", element("h2", title), element("p", note, _class="note") if note else "", *blocks)


def columns(*blocks: Html) -> Html:
    """Blocks side by side where there is room."""
    return element("div", *blocks, _class="columns")


def tiles(items: Iterable[tuple[str, object, object]]) -> Html:
    """The numbers that matter, large: (label, value, detail)."""
    made = (
        element(
            "div",
            element("div", label, _class="label"),
            element("div", value, _class="value"),
            element("div", detail, _class="detail"),
            _class="tile",
        )
        for label, value, detail in items
    )
    return element("div", *made, _class="tiles")


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[int] = ()) -> Html:
    """The columns named in `right`, from 0, hold numbers."""
    kinds = [{"_class": "number"} if column in right else {} for column in range(len(header))]
    head = element("tr", *(element("th", name, **kind) for name, kind in zip(header, kinds, strict=True)))
    lines = (
        element(
            "tr", *(element("td", "" if cell is None else cell, **kind) for cell, kind in zip(row, kinds, strict=True))
        )
        for row in rows
    )
    return element("div", element("table", element("thead", head), element("tbody", *lines)), _class="scroll")


def fold(summary: object, *content: object) -> Html:
    """Content behind a line that opens it."""
    return element("details", element("summary", summary), *content)


def searchable(content: str, hint: str) -> Html:
    """Lines of text with a field that keeps those that contain what is typed."""
    field = Html(f'<input type="search" placeholder="{html.escape(hint)}" aria-label="{html.escape(hint)}">')
    lines = (element("span", line + "\n") for line in content.splitlines())
    return element("div", field, element("pre", *lines), _class="searchable")


def badge(value: object, mood: str = "plain") -> Html:
    """A word in a pill; `mood` is plain, good, warn or bad."""
    return element("span", value, _class=f"badge {mood}")
