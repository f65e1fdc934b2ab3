"""Verdicts are read as FastChat and LongAlign read them where a reply holds one; of several the decision counts."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.judged import mean_scores, quoted, rating, turn_scores, verdict
from gateau_dagster.features.evaluation.judging.characteristics import (
    CHARACTERISTICS,
    characteristics_table,
    ends_of_ranking,
    mean_ratings,
    parse,
    prompt,
    wanted_ratings,
)
from gateau_dagster.features.evaluation.judging.judge_answers import judge_answers
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files
from tests.features.evaluation.judges import FakeJudge, settings


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Rating: [[5]]", 5),
        ("[[ 8 ]]", 8),
        ("**[[8]]**", 8),
        ("[[**8**]]", 8),
        ("[[8.5]]", 8.5),
        ("[[5.]]", 5),
        ("[[8/10]]", 8),
        ("[[rating: 6 points]]", 6),
        ("Rating: [8]", 8),
        ("[8]", 8),
        ("[[3]] or rather [[7.5]]", 7.5),
        ("Is it [[3]]? No. [[8]]", 8),
        ("<think>[[3]]? No, [[4]]</think> Rating: [[8]]", 8),
        ("a draft [[3]]</think>Rating: [[8]]", 8),
        ("<|channel|>analysis<|message|>[[2]]<|end|><|start|>assistant<|channel|>final<|message|>[[6]]", 6),
        ("analysisHmm [[2]]assistantfinalRating: [[6]]", 6),
        ("Rating: [[8]]. A [[10]] would need more.", 8),
        ('The form is "Rating: [[5]]". Rating: [[7]]', 7),
        ("As [[1]](https://host) says. Rating: [[8]]", 8),
        ("As the answer says in [1], it is fine. Rating: 8/10", None),
        ("<think>It may be [[3]]", None),
        ("[[80/100]]", None),
        ("[[11]]", None),
        ("[[11 of 10]]", None),
        ("11 of 10", None),
        ("[[0]]", None),
        ("[[rating]]", None),
        ("[[]]", None),
        ("", None),
        ("8", None),
    ],
)
def test_the_rating_that_counts(reply: str, value: float | None) -> None:
    assert rating(reply, low=1, high=10) == value


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("[[A]]", 1.0),
        ("My verdict: **[[ B ]]**", 0.0),
        ("[[Assistant A]]", 1.0),
        ("[[C]]", 0.5),
        ("<think>[[A]]? Rather B.</think> [[B]]", 0.0),
        ("[[A]]? No, [[B]]", 0.0),
        ('"[[A]]" if A is better, "[[B]]" if B is. [[B]]', 0.0),
        ("[[D]]", None),
        ("A", None),
    ],
)
def test_the_verdict_on_a_pair(reply: str, value: float | None) -> None:
    assert verdict(reply) == value


def test_a_quoted_reply_is_one_printable_line_with_its_end() -> None:
    shown = quoted("begin \x1b[31m\n" + "x" * 200 + " the end")
    assert shown.startswith("'…") and shown.endswith("the end'") and shown.isprintable() and len(shown) < 90


# From judgments to the values of questions, and of their turns.


QUESTIONS = [
    Question(question_id=name, group=group, turns=("one?", "two?"), generation=Generation(max_new_tokens=4))
    for name, group in (("q1", "writing"), ("q2", "math"), ("q3", "math"))
]


def judgments(*rows: tuple[str, int, float | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["question_id", "turn", "score"], orient="row")


GIVEN = judgments(
    ("q1", 0, 8.0), ("q1", 0, 6.0), ("q1", 1, 3.0), ("q1", 1, None), ("q2", 0, 9.0), ("q2", 1, 1.0), ("q3", 1, 5.0),
    ("q3", 0, None),
)  # fmt: skip


def test_a_question_is_worth_the_mean_of_its_turns() -> None:
    found = mean_scores(QUESTIONS, GIVEN, scale=10.0)
    assert found.table.schema == tables.schema(tables.SCORES)
    assert found.table.rows() == [("q1", "writing", 50.0), ("q2", "math", 50.0)]
    assert [(each.sample_id, each.reason) for each in found.rejected] == [
        ("q3", "1 of its 2 turns have no judgment with a score")
    ]


def test_turns_are_worth_the_means_of_their_judgments_and_their_mean_is_the_question_s() -> None:
    whole = mean_scores(QUESTIONS, GIVEN, scale=10.0).table
    found = turn_scores(whole, GIVEN, scale=10.0)
    first, second = found[0], found[1]
    assert first.rows() == [("q1", "writing", 70.0), ("q2", "math", 90.0)]
    assert second.rows() == [("q1", "writing", 30.0), ("q2", "math", 10.0)]
    assert first.schema == second.schema == tables.schema(tables.SCORES)
    assert ((first["value"] + second["value"]) / 2).to_list() == pytest.approx(whole["value"].to_list())


def test_without_a_score_there_is_no_turn() -> None:
    none = judgments(("q1", 0, None)).cast({"score": pl.Float64})
    assert turn_scores(mean_scores(QUESTIONS, none, scale=1.0).table, none, scale=1.0) == {}


def test_a_turn_has_its_number_where_the_one_before_it_cannot_be_read() -> None:
    second = judgments(("q1", 0, None), ("q1", 1, 4.0), ("q2", 1, 6.0))
    whole = mean_scores(QUESTIONS, GIVEN, scale=1.0).table
    (turn, table), *others = turn_scores(whole, second, scale=1.0).items()
    assert turn == 1 and table["value"].to_list() == [4.0, 6.0] and not others


# The five characteristics: which samples are rated, what the judge sees of each, and their means.


PARTS = {"context": "THE CONTEXT {x}", "instruction": "THE INSTRUCTION", "response": "THE RESPONSE"}


def sample(name: str) -> Sample:
    return Sample(sample_id=name, source="s", **{part: f"{text} of {name}" for part, text in PARTS.items()})


def test_the_best_and_the_worst_are_taken_and_none_twice() -> None:
    scores = pl.DataFrame({"sample_id": ["a", "b", "c", "d", "e"], "score": [1.0, 5.0, None, 5.0, 3.0]})
    assert ends_of_ranking(scores, 1) == {"b": "best", "a": "worst"}
    assert ends_of_ranking(scores, 9) == {"b": "best", "d": "best", "e": "worst", "a": "worst"}
    assert ends_of_ranking(scores.head(0), 3) == {}


@pytest.mark.parametrize(
    ("characteristic", "seen"),
    [
        ("coherence", {"context"}),
        ("necessity", {*PARTS}),
        ("faithfulness", {*PARTS}),
        ("helpfulness", {"instruction", "response"}),
        ("complexity", {"instruction"}),
    ],
)
def test_the_judge_sees_what_the_paper_shows_it(characteristic: str, seen: set[str]) -> None:
    text = prompt(sample("a"), characteristic)
    assert {part for part, words in PARTS.items() if words in text} == seen
    assert parse(text) == 3 and parse("[[6]]") is None


def test_ratings_are_means_over_repeats_by_part(tmp_path: Path) -> None:
    def reply(asked: object) -> str:
        return (
            "[[none]]" if "complexity" in str(asked) or "demanding" in str(asked) else f"[[{3 + len(judge.asked) % 2}]]"
        )

    judge, config = FakeJudge(reply), settings(repeats=2)
    wanted = wanted_ratings([sample("a"), sample("b")], config)
    assert len(wanted) == 20
    judged = judge_answers(wanted, parse, judge, Replies(Files(str(tmp_path)), "judge"), config)
    table = characteristics_table({"a": "best", "b": "worst"}, judged.table)
    assert table.schema == tables.schema(CHARACTERISTICS) and table.height == 10
    assert table.filter(characteristic="complexity")["rating"].null_count() == 2
    means = mean_ratings(table)
    assert means["characteristic"].to_list() == [*dict.fromkeys(table["characteristic"])]
    assert means.row(0) == ("coherence", 3.5, 3.5, None, None), "of one sample nothing is known of chance"


def test_intervals_are_student_s_over_samples() -> None:
    ratings = {"best": [4.0, 5.0, 3.5, None, 4.5], "worst": [1.0, 3.0]}
    rows = [
        (f"{part}{number}", part, "necessity", rating)
        for part, each in ratings.items()
        for number, rating in enumerate(each)
    ]
    table = pl.DataFrame(rows, schema=tables.schema(CHARACTERISTICS), orient="row")
    found = mean_ratings(table).filter(characteristic="necessity").row(0, named=True)
    for part, each in ratings.items():
        known = [rating for rating in each if rating is not None]
        low, high = stats.t.interval(0.95, len(known) - 1, loc=np.mean(known), scale=stats.sem(known))
        assert found[part] == np.mean(known)
        assert found[f"{part}_margin"] == pytest.approx((high - low) / 2, rel=1e-5)
