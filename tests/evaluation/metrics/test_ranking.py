"""Rankings in answers: how they are read, beside HELMET's reader where that is, and what they are worth."""

import itertools
import math
import random
from typing import Any

import pytest

from gateau_dagster.evaluation.metrics import ndcg, ranked_ids
from tests.evaluation import official

ANSWERS = [
    "Ranking: [ID: 3] > [ID: 1] > [ID: 12]",
    "ID7 > ID2\nand ID1 > ID4 > ID9",
    "5",
    "3 > 1 > 3 > 2",
    "first 12, then 4>5 >6",
]


def test_the_longest_ranking_is_read() -> None:
    found = [ranked_ids(answer) for answer in ANSWERS]
    assert found == [["3", "1", "12"], ["1", "4", "9"], ["5"], ["3", "1", "2"], ["4", "5", "6"]]
    assert ranked_ids("none") == ranked_ids("") == []


def test_rankings_are_helmet_s(monkeypatch: pytest.MonkeyPatch) -> None:
    stubs: dict[str, Any] = {"pytrec_eval": {}, "rouge_score": {"rouge_scorer": None}}
    code: Any = official.loaded(official.code("HELMET/utils.py"), monkeypatch, **stubs)
    rng = random.Random(3)
    pieces = ["ID", "id: ", "[", "]", " > ", ">", "1", "23", "4", "\n", " ", "Ranking: ", ","]
    for answer in [*ANSWERS, *("".join(rng.choices(pieces, k=rng.randint(1, 25))) for _ in range(500))]:
        theirs = code.parse_rankings(answer)
        numbers = [each for each in sorted(theirs, key=theirs.__getitem__, reverse=True) if each.isdigit()]
        assert ranked_ids(answer) == numbers, answer


def test_ndcg_is_the_gain_over_that_of_the_best_order() -> None:
    relevance = {"a": 3, "b": 0, "c": 1, "d": 2}
    best = max(
        sum(relevance[each] / math.log2(place + 2) for place, each in enumerate(order[:3]))
        for order in itertools.permutations(relevance)
    )
    found = ndcg(["c", "x", "a", "d"], relevance, depth=3)
    assert found == pytest.approx((1 / math.log2(2) + 3 / math.log2(4)) / best)
    assert ndcg(["a", "d", "c"], relevance, depth=10) == pytest.approx(1)
    assert ndcg(["a"], {"a": 0}, depth=10) == 0
