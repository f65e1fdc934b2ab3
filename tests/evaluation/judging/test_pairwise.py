"""Pairs are judged in both orders; what depends on the order is a tie and is counted as bias."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.judged import verdict
from gateau_dagster.evaluation.judging.judge_answers import answers_by_question, judge_answers
from gateau_dagster.evaluation.judging.pairwise import (
    PAIRWISE,
    Tally,
    matches,
    pairwise_table,
    tallies,
    wanted_of,
)
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files

from .builders import JUDGED, FakeJudge, answers, question, settings

SAID = {
    "longer": lambda left, right: "[[A]]" if len(left) > len(right) else "[[B]]" if len(right) > len(left) else "[[C]]",
    "first": lambda left, right: "[[A]]",
    "second": lambda left, right: "[[B]]",
    "silent": lambda left, right: "hm",
}


def played(folder: Path, how: str, left: dict[str, list[str]], right: dict[str, list[str]]) -> tuple[Any, FakeJudge]:
    def reply(asked: Any) -> str:
        _, one, other = asked.messages[0]["content"].split(" ")
        return SAID[how](one, other)

    judge, config = FakeJudge(reply), settings()
    questions = [question(name, turns=len(texts)) for name, texts in left.items()]
    given = {name: answers_by_question(answers(texts)) for name, texts in (("x", left), ("y", right))}
    found = matches([("x", "y"), ("y", "x")], questions, given, JUDGED, config)
    judged = judge_answers(wanted_of(found), verdict, judge, Replies(Files(str(folder)), "judge"), config)
    return pairwise_table(found, judged.table), judge


LEFT, RIGHT = {"q": ["long", "a"], "r": ["aa"]}, {"q": ["s", "bb"], "r": ["cc"]}


def test_both_orders_say_the_same_of_a_judge_that_looks_at_the_answers(tmp_path: Path) -> None:
    table, judge = played(tmp_path, "longer", LEFT, RIGHT)
    assert table.schema == tables.schema(PAIRWISE)
    assert table.filter(one="x")["outcome"].to_list() == ["win", "loss", "tie"]
    assert table.filter(one="y")["outcome"].to_list() == ["loss", "win", "tie"]
    assert tallies(table)[0] == Tally(
        one="x", other="y", wins=1, ties=1, losses=1, unreadable=0, consistent=1.0, bias=0.0
    )
    assert len(judge.asked) == 6, "both orders of a pair are those of the pair turned round"


@pytest.mark.parametrize(("how", "bias"), [("first", 1.0), ("second", -1.0)])
def test_a_judge_that_looks_at_the_place_decides_nothing(how: str, bias: float, tmp_path: Path) -> None:
    (tally, _) = tallies(played(tmp_path, how, LEFT, RIGHT)[0])
    assert (tally.wins, tally.ties, tally.losses) == (0, 3, 0)
    assert (tally.consistent, tally.bias) == (0.0, bias)


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    table, _ = played(tmp_path, "silent", LEFT, RIGHT)
    assert table["outcome"].null_count() == table.height == 6
    assert [each.unreadable for each in tallies(table)] == [3, 3]


def test_a_question_that_one_did_not_answer_is_left_out(tmp_path: Path) -> None:
    table, _ = played(tmp_path, "longer", LEFT, {"q": ["s"], "r": ["cc"]})
    assert table["question_id"].unique().to_list() == ["r"]
