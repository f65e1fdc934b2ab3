"""Which turns are asked, in which order, and what is kept; the engine here only notes what it is asked."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.generation import answering
from gateau_dagster.features.evaluation.generation.answering import AnsweringResult, Row, answer_all
from tests.features.evaluation.engines import Noting, question

TWO = question("two", "a", "b")
ONE = question("one", "c")


def answered(
    questions: Sequence[Question], engine: Noting, before: Sequence[Row] = (), saved: list[Row] | None = None
) -> AnsweringResult:
    return answer_all(
        questions,
        before,
        lambda: engine,
        save=(saved if saved is not None else []).extend,
        progress=lambda *_, **__: None,
    )


def test_a_turn_is_asked_once_the_one_before_it_is_answered() -> None:
    engine = Noting(lambda asked: f"{asked.question.question_id}{asked.turn}")
    found = answered([TWO, ONE], engine)
    assert engine.asked == [("two", 0, ()), ("one", 0, ()), ("two", 1, ("two0",))]
    assert [(row["question_id"], row["turn"], row["answer"]) for row in found.made] == [
        ("two", 0, "two0"),
        ("one", 0, "one0"),
        ("two", 1, "two1"),
    ]
    assert not found.kept and not found.rejected


def test_answers_that_still_hold_are_kept_and_no_engine_is_made_for_them() -> None:
    made = answered([TWO, ONE], Noting()).made
    changed = question("one", "c", generation={"max_new_tokens": 9})
    engine = Noting()
    found = answered([TWO, changed, question("new", "d")], engine, made)
    assert engine.asked == [("one", 0, ()), ("new", 0, ())]
    assert {row["question_id"] for row in found.kept} == {"two"} and len(found.kept) == 2
    graded = Question(**{**vars(ONE), "references": ("x",), "facts": {"y": 1}, "group": "other"})

    def nobody() -> Any:
        raise AssertionError("nothing is to be asked")

    again = answer_all([TWO, graded], made, nobody, save=lambda _: None, progress=lambda *_, **__: None)
    assert again.made == [] and len(again.kept) == 3


def test_a_later_turn_is_not_kept_without_those_before_it() -> None:
    made = answered([TWO], Noting()).made
    engine = Noting(lambda asked: "other")
    found = answered([TWO], engine, [row for row in made if row["turn"] == 1])
    assert engine.asked == [("two", 0, ()), ("two", 1, ("other",))]
    assert len(found.made) == 2
    half = Noting()
    assert len(answered([TWO], half, [row for row in made if row["turn"] == 0]).made) == 1
    assert half.asked == [("two", 1, ("two!",))]


def test_a_question_without_an_answer_is_not_asked_on_and_says_why() -> None:
    engine = Noting(lambda asked: None if asked.question.question_id == "two" else "yes")
    found = answered([TWO, ONE], engine)
    assert [reject.sample_id for reject in found.rejected] == ["two"]
    assert engine.asked == [("two", 0, ()), ("one", 0, ())]


def test_progress_tells_what_is_at_work_before_the_first_answer_and_of_turns_that_are_answered() -> None:
    seen: list[tuple[float, str]] = []

    def progress(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        seen.append((done, note))

    answer_all([question("a"), question("b"), question("c")], (), Noting, save=lambda _: None, progress=progress)
    assert seen == [(0, ""), (0, "from 0"), (2, ""), (2, "from 2"), (3, "")]
    seen.clear()
    engine = Noting()
    answer_all([TWO, ONE, question("no", "d", "e")], (), lambda: engine, save=lambda _: None, progress=progress)
    assert seen == [
        (0, "turn 1 of 2, 0 answered"),
        (0, "turn 1 of 2, 0 answered: from 0"),
        (1, "turn 1 of 2, 2 answered"),
        (1, "turn 1 of 2, 2 answered: from 2"),
        (1, "turn 1 of 2, 3 answered"),
        (1, "turn 2 of 2, 0 answered"),
        (1, "turn 2 of 2, 0 answered: from 0"),
        (3, "turn 2 of 2, 2 answered"),
    ]


def test_the_time_left_gets_less_while_a_group_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left_then = [0.0], []
    monkeypatch.setattr(answering.time, "monotonic", lambda: clock[0])

    def progress(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        if left is not None and note:
            left_then.append((done, left))

    class Slow(Noting):
        def answers(self, asked: Any, missing: Any, note: Any = None) -> Any:
            for group in super().answers(asked, missing):
                for _ in range(2):
                    clock[0] += 10
                    note("at work")
                yield group

    answer_all([question(name) for name in "abcd"], (), Slow, save=lambda _: None, progress=progress)
    assert left_then == [(2, 10.0), (2, 0.0)]
