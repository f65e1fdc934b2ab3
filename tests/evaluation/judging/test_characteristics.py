"""The five characteristics: which samples are rated, what the judge sees of each, and their means."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.evaluation.judging.characteristics import (
    CHARACTERISTICS,
    characteristics_table,
    ends_of_ranking,
    mean_ratings,
    parse,
    prompt,
    wanted_ratings,
)
from gateau_dagster.evaluation.judging.judge_answers import judge_answers
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files

from .builders import FakeJudge, settings

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
