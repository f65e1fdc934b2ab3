"""Read the verdict in a judge's reply; all benchmarks, ratings and pairs use the same rule.

FastChat takes the first `[[n]]` of a reply and LongAlign the last one. They agree on a reply with one verdict. A judge
that thinks writes several verdicts, and its decision is the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gateau_dagster.errors import redacted
from gateau_dagster.evaluation.grading import without_thoughts

CODE_VERSION = "2"
_DOUBLE = re.compile(r"\[\[([^\[\]\n]{1,60})\]\](?!\()")
# A number in single brackets is a citation, unless the judge calls it a rating or it is the whole reply.
_SINGLE = re.compile(r"(?i)\b(?:rating|score|verdict)\b[*_\s]*(?:is|:|=)?[*_\s]*\[([^\[\]\n]{1,20})\](?![(\[\]])")
_ALONE = re.compile(r"[*_\s]*\[([^\[\]\n]{1,20})\][*_\s.]*")
_LABEL = re.compile(r"(?i)\b(?:rating|score|verdict|decision|answer)\b[*_\s\"']*(?:is|:|=)?[*_\s:]*$")
_LABEL_LENGTH = 40
_DRAFT = re.compile(r"[*_\s]*\?")
_QUOTE_BEFORE = re.compile(r"[\"'`\u201c\u2018][^\"'`\u201c\u201d\n]{0,30}$")
_QUOTE_AFTER = re.compile(r"[*_]*[\"'`\u201d\u2019]")
_RATING = re.compile(
    r"(?i)(?:(?:rating|score|my|the|is|overall|final)[\s:=]+)*(\d+(?:\.\d*)?)\s*(?:(?:/|of|out of)\s*(\d+)|points?)?"
)
_CHOICE = re.compile(r"(?i)(?:(?:assistant|model|verdict|answer)[\s:]+)*([abc]|tie)")
_CHOICES = {"a": 1.0, "b": 0.0, "c": 0.5, "tie": 0.5}
_QUOTED = 80
"""Most characters of a reply in a message."""


def rating(reply: str, *, low: float, high: float) -> float | None:
    """Return the rating of a reply; None where it holds none, or its last one is outside of low..high.

    Thoughts are removed first. A rating is a number in double brackets: `[[8]]`, `[[ 8.5 ]]`, `**[[8]]**`, `[[8/10]]`.
    One in single brackets counts where the reply calls it a rating, as in `Rating: [8]`. `_decided` chooses among
    several.
    """
    return _decided(reply, lambda text: _rating(text, low, high))


def verdict(reply: str) -> float | None:
    """Return FastChat's `[[A]]`, `[[B]]` or `[[C]]` as 1, 0 or 0.5; None where there is none. `_decided` chooses."""
    return _decided(reply, _choice)


def quoted(reply: str) -> str:
    """Return the end of a reply, where its verdict should be, for a message: on one line, without secrets."""
    text = redacted(" ".join(reply.split())).encode("ascii" if not reply.isprintable() else "utf-8", "replace").decode()
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text).replace("'", '"')
    return f"'{shown}'" if len(shown) <= _QUOTED else f"'\u2026{shown[-_QUOTED:]}'"


def _decided(reply: str, read: Callable[[str], float | None]) -> float | None:
    """Return the last verdict of a reply without its thoughts.

    Verdicts followed by a question mark are drafts. Of several, unquoted ones precede quoted ones. Labelled ones
    ("Rating: [[8]]") precede those without a label. The last of the remaining ones counts.
    """
    text = without_thoughts(reply)
    if text is None:
        return None
    marks = [match for match in _DOUBLE.finditer(text) if not _DRAFT.match(text, match.end())]
    marks = [match for match in marks if _is_verdict(match[1])]
    if not marks:
        single = [*_SINGLE.finditer(text)] or [*filter(None, [_ALONE.fullmatch(text)])]
        return read(single[-1][1]) if single else None
    plain = [match for match in marks if not _is_quoted(text, match)] or marks
    called = [match for match in plain if _is_called(text, match)] or plain
    return read(called[-1][1])


def _is_verdict(text: str) -> bool:
    """Return whether the text looks like a verdict, on this scale or another."""
    text = text.strip("*_ \t")
    return _RATING.fullmatch(text) is not None or _CHOICE.fullmatch(text) is not None


def _is_quoted(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - _LABEL_LENGTH) : match.start()]
    return _QUOTE_AFTER.match(text, match.end()) is not None and _QUOTE_BEFORE.search(before) is not None


def _is_called(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - _LABEL_LENGTH) : match.start()]
    return _LABEL.search(before.rstrip("*_ \t\"'`")) is not None


def _rating(text: str, low: float, high: float) -> float | None:
    match = _RATING.fullmatch(text.strip("*_ \t"))
    if match is None or (match[2] is not None and float(match[2]) != high):
        return None
    value = float(match[1])
    return value if low <= value <= high else None


def _choice(text: str) -> float | None:
    match = _CHOICE.fullmatch(text.strip("*_ \t"))
    return None if match is None else _CHOICES[match[1].lower()]
