"""Make untrusted text readable. HTML escaping is left to the template, which escapes everything."""

from dataclasses import dataclass

from markupsafe import Markup

from gateau_dagster.readable import UNSAFE


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """The two ends of a text; `end` is empty when `start` is all of it. `left_out`: characters between them.

    unseen_start, unseen_end: text before `start` and `end` that no model saw.
    unseen: characters of the whole text that no model saw.
    """

    start: str
    end: str
    left_out: int
    unseen_start: str = ""
    unseen_end: str = ""
    unseen: int = 0


def printable(text: str) -> str:
    """Return the text with each invisible or direction-changing character shown as the replacement character."""
    return UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def snippet(text: str, *, each: int = 700, unseen: int = 0) -> Snippet:
    """Return at most `each` characters of either end of `text`, whose first `unseen` characters no model saw."""
    left_out = max(0, len(text) - 2 * each)
    first, last = (text[:each], text[-each:]) if left_out else (text, "")
    cut = max(0, unseen - (len(text) - len(last)))
    return Snippet(
        unseen_start=printable(first[:unseen]),
        start=printable(first[unseen:]),
        unseen_end=printable(last[:cut]),
        end=printable(last[cut:]),
        left_out=left_out,
        unseen=unseen,
    )


def breakable(name: str) -> Markup:
    """Return a name that may break after each `_`: HTML, escaped."""
    return Markup("_<wbr>").join(name.split("_"))
