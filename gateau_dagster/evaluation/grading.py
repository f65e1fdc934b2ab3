"""From answers to values, one question at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Measured

_TAGS = r"think(?:ing)?|thoughts?|reasoning|reflection"
_OPENS = re.compile(rf"(?i)<({_TAGS})>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>|<\|channel\|>\s*analysis")
_CLOSES = re.compile(
    rf"(?i)</(?:{_TAGS})>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>|"
    r"<\|channel\|>\s*final\s*(?:<\|constrain\|>\s*\w+)?\s*<\|message\|>"
)
_PLAIN_CHANNELS = re.compile(r"(?s)analysis.*?assistantfinal")  # where the special tokens were left out
_ENDS = re.compile(r"<\|(?:return|end|START_RESPONSE|END_RESPONSE)\|>")


def begins_with_thoughts(text: str) -> bool:
    """Whether a text begins with thoughts, or consists of them; they may lack their opening, which a template gives."""
    begun = text.lstrip()
    return bool(_OPENS.match(begun) or _PLAIN_CHANNELS.match(begun)) or _lacks_opening(begun)


def without_thoughts(text: str) -> str | None:
    """Return what follows the thoughts that a text begins with; the whole text where it begins with none.

    None where the thoughts never end: the model was cut off before it answered.
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
    return closing is not None and _OPENS.search(text, 0, closing.start()) is None


def grade_each(
    questions: Sequence[Question], answers: pl.DataFrame, value: Callable[[Question, str], float]
) -> Measured:
    """`value` of each question and its first turn's answer; a question that has none is rejected.

    answers: tables.ANSWERS.
    """
    given = dict(answers.filter(pl.col("turn") == 0).select("question_id", "answer").iter_rows())
    rows = [
        (each.question_id, each.group, value(each, given[each.question_id]))
        for each in questions
        if each.question_id in given
    ]
    missing = (each.question_id for each in questions if each.question_id not in given)
    return measured(rows, [Reject(sample_id=question_id, reason="it was not answered") for question_id in missing])


def measured(rows: Iterable[tuple[str, str, float]], rejected: Sequence[Reject] = ()) -> Measured:
    """rows: question's id, group and value."""
    return Measured(table=pl.DataFrame([*rows], schema=tables.schema(tables.SCORES), orient="row"), rejected=rejected)
