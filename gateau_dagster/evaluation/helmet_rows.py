"""HELMET's prompts of values of JSON keys, questions over passages and re-ranking, from the rows of its data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.helmet_draws import Row, drawn_by_key, examples, shuffled
from gateau_dagster.evaluation.helmet_words import POPULAR, RANKED, RECALL, Asked, Setting, Words

_LESS_POPULAR = 3  # of POPULAR: questions whose entity is looked up fewer than 10^3 times


def asked_of(
    setting: Setting, words: Words, rows: Sequence[Row], demos: Sequence[Row], *, most: int
) -> Iterator[Asked]:
    """Every row of `most` different questions, with the examples that HELMET draws for it.

    Raises GateauError where there are too few examples; KeyError, IndexError or TypeError for rows of another form.
    """
    if setting.task == RECALL:
        yield from (_recalled(row, words, row["demos"][: setting.shots]) for row in shuffled(rows)[:most])
        return
    if setting.task == POPULAR:
        rows, demos = ([each for each in many if math.log10(each["s_pop"]) < _LESS_POPULAR] for many in (rows, demos))
    key = _key(setting.task, rows)
    asked = drawn_by_key(rows, key, most)
    make = _ranked if setting.task == RANKED else _read
    for row in asked:
        found = examples(_others(setting.task, row, asked, demos, key), key, row[key], setting.shots)
        if len(found) < setting.shots:
            raise GateauError(f"evaluation.helmet.data: {setting.demo_file} has fewer than {setting.shots} examples")
        yield make(str(row[key]), row, words, found)


def _key(task: str, rows: Sequence[Row]) -> str:
    """What tells questions apart."""
    name, other = ("qid", "query") if task == RANKED else ("id", "question")
    return name if rows and name in rows[0] else other


def _others(task: str, row: Row, asked: Sequence[Row], demos: Sequence[Row], key: str) -> Sequence[Row]:
    """The examples that are none of the questions, where both are drawn from one file."""
    if task == RANKED and len(demos) > 2 * len(asked):
        known = {each[key] for each in asked}
        return [each for each in demos if each[key] not in known]
    if task in {POPULAR, RANKED}:
        return [each for each in demos if each[key] != row[key]]
    return demos


def _recalled(row: Row, words: Words, demos: Sequence[Sequence[str]]) -> Asked:
    shown = "".join(words.demo.format(key=key, value=f" {value}") + "\n\n" for key, value in demos)
    prompt = words.user.format(context=row["context"], demos=shown, question=row["question"])
    return Asked(key=str(row["question"]), prompt=prompt, lead=words.lead, answers=_listed(row["answer"]))


def _read(key: str, row: Row, words: Words, demos: Sequence[Row]) -> Asked:
    shown = "".join(
        words.demo.format(documents=_passages(each, words), question=each["question"], answer=each["answers"][0])
        + "\n\n"
        for each in demos
    )
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["question"])
    return Asked(key=key, prompt=prompt, lead=words.lead, answers=_listed(row["answers"]))


def _ranked(key: str, row: Row, words: Words, demos: Sequence[Row]) -> Asked:
    shown = ""
    for each in demos:
        best_first = sorted(each["ctxs"], key=lambda passage: passage["label"], reverse=True)
        ranking = " > ".join(str(passage["id"]) for passage in best_first)
        shown += f"{_passages(each, words, row)}\n\nQuery: {each['query']}\n{words.lead} {ranking}\n\n"
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["query"])
    relevance = {str(each["id"]): int(each["label"]) for each in row["ctxs"]}
    return Asked(key=key, prompt=prompt, lead=words.lead, relevance=relevance)


def _passages(row: Row, words: Words, like: Row | None = None) -> str:
    """With titles where the first passage of the question, `like`, has one."""
    shown = (like or row)["ctxs"]
    titled = bool(shown) and "title" in shown[0]
    form = next((each for each in words.passages if ("{title}" in each) is titled), words.passages[0])
    return "\n\n".join(form.format(**each) for each in row["ctxs"])


def _listed(answers: Any) -> tuple[str, ...]:
    """HELMET's answers are a text, a list, or a list of lists."""
    if isinstance(answers, str):
        return (answers,)
    return tuple(text for each in answers for text in ([each] if isinstance(each, str) else each))
