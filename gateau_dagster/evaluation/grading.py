"""Leave thoughts out of the answers that are graded."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from gateau_dagster.readable import plural

# Raise it when the same answers get other values in all benchmarks.
CODE_VERSION = "1"
_TAGS = r"think(?:ing)?|thoughts?|reasoning|reflection"
_OPENS = re.compile(rf"(?i)<({_TAGS})>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>|<\|channel\|>\s*analysis")
_CLOSES = re.compile(
    rf"(?i)</(?:{_TAGS})>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>|"
    r"<\|channel\|>\s*final\s*(?:<\|constrain\|>\s*\w+)?\s*<\|message\|>"
)
_PLAIN_CHANNELS = re.compile(r"(?s)analysis.*?assistantfinal")  # without the special tokens
_QUOTES = "`'\"\u2018\u2019\u201c\u201d"
_ENDS = re.compile(r"<\|(?:return|end|START_RESPONSE|END_RESPONSE)\|>")


def begins_with_thoughts(text: str) -> bool:
    """Return whether a text begins with thoughts; they may lack their opening, which a template gives."""
    begun = text.lstrip()
    return bool(_OPENS.match(begun) or _PLAIN_CHANNELS.match(begun)) or _lacks_opening(begun)


def without_thoughts(text: str) -> str | None:
    """Return what follows the thoughts that a text begins with; the whole text where it begins with none.

    Return None where the thoughts never end: the model was cut off before it answered.
    """
    if not begins_with_thoughts(text):
        return text
    rest = text.lstrip()
    if plain := _PLAIN_CHANNELS.match(rest):
        return rest[plain.end() :].strip()
    while (opening := _OPENS.match(rest)) or _lacks_opening(rest):
        closing = _CLOSES.search(rest, opening.end() if opening else 0)
        if closing is None:
            return None
        rest = rest[closing.end() :].lstrip()
    return _ENDS.sub("", rest).strip()


def _lacks_opening(text: str) -> bool:
    closing = _CLOSES.search(text)
    if closing is None or _OPENS.search(text, 0, closing.start()) is not None:
        return False
    around = text[max(0, closing.start() - 1) : closing.start()] + text[closing.end() : closing.end() + 1]
    return not any(mark in around for mark in _QUOTES)  # an answer may mention the tag


def graded_answers(answers: pl.DataFrame, thoughts: str) -> pl.DataFrame:
    """Return tables.ANSWERS with the answers that metrics and judges see.

    Args:
        answers: some columns of tables.ANSWERS, `answer` among them.
        thoughts: `evaluation.thoughts`. drop: an answer without the thoughts that it begins with, empty where they
            never end. keep: the whole answer.
    """
    if thoughts == "keep":
        return answers
    texts = [without_thoughts(text) or "" for text in answers["answer"]]
    return answers.with_columns(answer=pl.Series(texts, dtype=pl.String))


def grading_settings(thoughts: str) -> dict[str, Any]:
    """Return the settings that decide how stored answers are graded; the code version covers the default."""
    return {} if thoughts == "drop" else {"evaluation.thoughts": thoughts}


def unfinished_thoughts(answers: pl.Series) -> int:
    """Return how many answers consist of thoughts that never end."""
    return sum(without_thoughts(text) is None for text in answers)


def thoughts_sentence(answers: pl.Series, thoughts: str) -> str:
    """Return how many answers begin with thoughts, and what that means for their grades; empty where none does."""
    count = sum(map(begins_with_thoughts, answers))
    if not count:
        return ""
    verb = "begins" if count == 1 else "begin"
    found = f"{count:,} of {plural(answers.len(), 'answer')} {verb} with thoughts"
    if thoughts == "keep":
        return f"{found}, which are graded as a part of them: evaluation.thoughts is keep"
    unfinished = unfinished_thoughts(answers)
    ends = f"; in {unfinished:,} they never end, which counts as an empty answer" if unfinished else ""
    return f"{found}, which are left out of grading{ends}"
