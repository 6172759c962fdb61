"""WikiText as the field measures it: pages, the detokeniser of EleutherAI's lm-evaluation-harness, words by whitespace.

The corpus was tokenised for models of words (" @-@ ", " , "). A model of today reads it put back into ordinary text,
while words and bytes are counted in the text as it was: so the harness's task `wikitext` does it.
"""

import re
from collections.abc import Iterator

# In this order; what looks odd (a pattern that never matches, N for 1) is the harness's, and numbers depend on it.
_STEPS: tuple[tuple[str, str, bool], ...] = (
    ("s '", "s'", False),
    (r"/' [0-9]/", r"/'[0-9]/", True),
    (" @-@ ", "-", False),
    (" @,@ ", ",", False),
    (" @.@ ", ".", False),
    (" : ", ": ", False),
    (" ; ", "; ", False),
    (" . ", ". ", False),
    (" ! ", "! ", False),
    (" ? ", "? ", False),
    (" , ", ", ", False),
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)", True),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]", True),
    (r"{\s*([^}]*?)\s*}", r"{\1}", True),
    (r"\"\s*([^\"]*?)\s*\"", r'"\1"', True),
    (r"'\s*([^']*?)\s*'", r"'\1'", True),
    ("= = = =", "====", False),
    ("= = =", "===", False),
    ("= =", "==", False),
    (f" {chr(176)} ", chr(176), False),
    (" \n", "\n", False),
    ("\n ", "\n", False),
    (" N ", " 1 ", False),
    (" 's", "'s", False),
)


def detokenize(page: str) -> str:
    """The page as ordinary text."""
    for old, new, is_pattern in _STEPS:
        page = re.sub(old, new, page) if is_pattern else page.replace(old, new)
    return page


def pages(text: str) -> Iterator[str]:
    """The pages of a whole file (`wiki.test.raw`), each from its title line ` = Title = ` to before the next.

    The rule of the harness's own data set: what comes before the first title is a page too, unless it is blank.
    """
    page: list[str] = []
    for line in text.split("\n"):
        if _is_title(line):
            whole = "\n".join(page)
            if whole.strip():
                yield whole
            page = []
        page.append(line)
    whole = "\n".join(page)
    if whole.strip():
        yield whole


def _is_title(line: str) -> bool:
    """One equals sign at either end: ` = = Section = = ` is none."""
    bare = line.replace("= = =", "===").replace("= =", "==").strip()
    return bare.startswith("= ") and bare.endswith(" =")


def count_words(text: str) -> int:
    """Pieces between runs of white space, an empty one at either end counted, as the harness counts."""
    return len(re.split(r"\s+", text))
