"""Verdicts are read as FastChat and LongAlign read them where a reply holds one; of several the decision counts."""

import pytest

from gateau_dagster.evaluation.judged import quoted, rating, verdict


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
