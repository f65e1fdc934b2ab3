"""Answers in a store: what is kept between runs that end well, are killed, or change what is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.assets.benchmarks import answer_questions
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.generation.answering import AnsweringResult, AskedTurn
from gateau_dagster.storage import Stamp, Store
from tests.evaluation.engines import Noting, question

QUESTIONS = [question("b", "one", "two"), question("a"), question("c")]


def bring(
    store: Store,
    engine: Noting,
    questions: Sequence[Question] = QUESTIONS,
    scorer: str = "s",
    contents: Any = None,
    asset: str = "answers/x",
    shared: Sequence[str] = (),
) -> AnsweringResult:
    def write(table: pl.DataFrame, rejected: pl.DataFrame, content: str, unanswered: Sequence[str]) -> None:
        stamp = Stamp(fingerprint="f", scorer=scorer).without(unanswered, "m")
        store.write(table, asset, "v", stamp, rejected)
        if contents is not None:
            contents.append(content)

    return answer_questions(
        store,
        asset,
        "v",
        scorer=scorer,
        questions=questions,
        engine=lambda: engine,
        write=write,
        progress=lambda *_, **__: None,
        shared=shared,
    )


def test_answers_are_a_table_in_order_and_are_not_asked_for_twice(tmp_path: Path) -> None:
    store, first, again = Store(str(tmp_path)), Noting(), Noting()
    bring(store, first, contents=(contents := []))
    table = store.read("answers/x", "v")
    assert table.schema == tables.schema(tables.ANSWERS)
    assert table.select("question_id", "turn").rows() == [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    assert bring(store, again, contents=contents).made == [] and again.asked == []
    assert store.read("answers/x", "v").equals(table) and contents[0] == contents[1]
    assert not store.files.names("_partial/answers/x")


def test_another_model_or_question_is_asked(tmp_path: Path) -> None:
    store, other, changed = Store(str(tmp_path)), Noting(lambda asked: "other"), Noting()
    bring(store, Noting())
    bring(store, other, scorer="t")
    assert len(other.asked) == 4
    found = bring(store, changed, [QUESTIONS[0], question("a", "another")], scorer="t")
    assert [name for name, *_ in changed.asked] == ["a"] and len(found.kept) == 2
    assert store.read("answers/x", "v")["question_id"].to_list() == ["a", "b", "b"]


def said(asked: AskedTurn) -> str:
    return f"{asked.question.question_id}{asked.turn}"


def interrupted(store: Store, after: int) -> list[str]:
    """What was answered by a run that ends within the group of this answer."""
    answered: list[str] = []

    def until(asked: AskedTurn) -> str:
        if len(answered) == after:
            raise KeyboardInterrupt
        answered.append(said(asked))
        return answered[-1]

    with pytest.raises(KeyboardInterrupt):
        bring(store, Noting(until))
    assert store.stamp("answers/x", "v") is None
    return answered


def test_what_was_answered_before_an_end_is_not_asked_again(tmp_path: Path) -> None:
    store, whole = Store(str(tmp_path / "broken")), Store(str(tmp_path / "whole"))
    assert interrupted(store, 3) == ["b0", "a0", "c0"]
    assert interrupted(store, 0) == []
    last = Noting(said)
    bring(store, last)
    assert last.asked == [("b", 1, ("b0",))]
    bring(whole, Noting(said))
    assert whole.read("answers/x", "v").equals(store.read("answers/x", "v"))


def test_the_seconds_that_answers_took_are_no_part_of_their_content(tmp_path: Path) -> None:
    contents: list[str] = []
    for seconds, engine in ((0.5, Noting()), (99.0, Noting()), (0.5, Noting(said))):
        engine.seconds = seconds
        bring(Store(str(tmp_path / str(len(contents)))), engine, contents=contents)
    assert contents[0] == contents[1] != contents[2]


def test_a_refused_question_has_no_row_and_is_lacking(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    bring(store, Noting(lambda asked: None if asked.turn else "yes"))
    assert store.read("answers/x", "v")["question_id"].to_list() == ["a", "c"]
    assert store.read_rejected("answers/x", ["v"]).rows() == [("b", "it will not")]
    stamp = store.stamp("answers/x", "v")
    assert stamp is not None and (stamp.complete, stamp.lacking) == ("f", "m")


def test_what_another_benchmark_asked_is_not_asked_again(tmp_path: Path) -> None:
    store, more, other = Store(str(tmp_path)), Noting(said), Noting(said)
    bring(store, Noting(said))
    questions = [*QUESTIONS[:2], question("c", "asked otherwise"), question("d")]
    bring(store, more, questions, asset="answers/y", shared=["answers/x"])
    assert [name for name, *_ in more.asked] == ["c", "d"]
    rows = [store.read(f"answers/{name}", "v").filter(pl.col("question_id").is_in(["a", "b"])) for name in ("x", "y")]
    assert rows[0].equals(rows[1]) and rows[0].height == 3
    bring(store, other, questions, asset="answers/z", shared=["answers/x"], scorer="of another model")
    assert len(other.asked) == 5
