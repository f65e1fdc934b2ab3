"""Score answers of a word, a number, a class or a line by their occurrence in the model's text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\d+")
_PASSAGE = re.compile(r"(?:Paragraph |段落)(\d+)")
_COMMENT = ("`", "#", "//")


def number_share(answer: str, right: str) -> float:
    """Return the share of the numbers in the answer that are the right one."""
    numbers = _NUMBER.findall(answer)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def passage_share(answer: str, right: str) -> float:
    """Return `number_share` for the number of the first passage that `right` names."""
    found = _PASSAGE.search(right)
    return number_share(answer, found.group(1)) if found else 0.0


def class_share(answer: str, right: str, classes: Sequence[str]) -> float:
    """Return 1 over the number of classes that the answer names, if the right one is among them; else 0.

    A class that is part of the right one's name does not count, unless it follows another such class directly. The
    published code has this effect, because it removes items from a list while it iterates over it.
    """
    named, place = [each for each in classes if each in answer], 0
    while place < len(named):
        if named[place] in right and named[place] != right:
            named.remove(named[place])
        place += 1
    return 1.0 / len(named) if right in named else 0.0


def line_similarity(answer: str, right: str) -> float:
    """Return the similarity, in hundredths, of the right line and the answer's first line without comment or fence."""
    lines = answer.lstrip("\n").split("\n")
    line = next((each for each in lines if not any(mark in each for mark in _COMMENT)), "")
    if line == right:
        return 1.0
    if not line or not right:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, line, right).ratio()) / 100


def share_contained(answer: str, right: Sequence[str]) -> float:
    """Return the share of the right answers that the answer contains, ignoring case."""
    return sum(each.lower() in answer.lower() for each in right) / len(right)
