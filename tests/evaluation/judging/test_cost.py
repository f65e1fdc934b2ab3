"""Costs are counted with a tokenizer, then with what the server counted, and refused above the budget."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.evaluation.judging.cost import (
    EXPECTED_REPLY,
    BudgetError,
    check_affordable,
    cost_of_judgments,
    cost_sentence,
    money_of,
    planned_cost,
)
from gateau_dagster.evaluation.judging.replies import JudgeCall, Replies, Reply, Usage
from gateau_dagster.storage.files import Files

from .builders import settings


def asked(words: int) -> JudgeCall:
    return JudgeCall(judge="judge", messages=[{"role": "user", "content": "word " * words}], max_tokens=1000)


def words(text: str) -> int:
    return len(text.split())


def test_without_replies_the_tokenizer_counts() -> None:
    found = planned_cost(settings(), [asked(100), asked(300)], None, words)
    assert found.usage == Usage(requests=2, prompt_tokens=400, reply_tokens=2 * EXPECTED_REPLY)
    assert found.kept == 0
    assert found.money == pytest.approx((2.0 * 400 + 8.0 * 600) / 1e6)


def test_replies_that_came_correct_the_count_and_cost_nothing(tmp_path: Path) -> None:
    replies = Replies(Files(str(tmp_path)), "judge")
    replies.keep(asked(100), Reply(text="", prompt_tokens=230, reply_tokens=10, seconds=0.0))
    found = planned_cost(settings(), [asked(100), asked(300)], replies, words)
    assert found.kept == 1
    assert found.usage == Usage(requests=1, prompt_tokens=690, reply_tokens=10)
    assert (found + found).usage.prompt_tokens == 1380


def test_a_kept_reply_whose_tokens_nobody_counted_does_not_say_that_others_cost_nothing(tmp_path: Path) -> None:
    replies = Replies(Files(str(tmp_path)), "judge")
    replies.keep(asked(100), Reply(text="", prompt_tokens=0, reply_tokens=0, seconds=0.0))
    found = planned_cost(settings(), [asked(100), asked(300)], replies, words)
    assert found.usage == Usage(requests=1, prompt_tokens=300, reply_tokens=EXPECTED_REPLY)


def test_equal_requests_are_asked_once_but_answers_to_come_are_taken_to_differ() -> None:
    found = planned_cost(settings(), [asked(5), asked(5), asked(7)], None, words, longest=[asked(9), asked(9)])
    assert (found.usage.requests, found.usage.prompt_tokens) == (4, 5 + 7 + 9 + 9)


@pytest.mark.parametrize(("budget", "fits"), [({"requests": 12}, True), ({"requests": 11}, False), ({}, True)])
def test_what_is_spent_counts_towards_the_budget(budget: dict[str, int], fits: bool) -> None:
    config = settings(budget=budget)
    planned = planned_cost(config, [asked(1), asked(2)], None, words)
    if fits:
        check_affordable(config, Usage(requests=10), planned)
    else:
        with pytest.raises(BudgetError, match=r"evaluation\.judge\.budget: .*11 requests"):
            check_affordable(config, Usage(requests=10), planned)


def test_money_has_its_budget_and_nothing_to_ask_is_always_affordable() -> None:
    config = settings(budget={"money": 0.001})
    with pytest.raises(BudgetError, match=r"0\.00 USD"):
        check_affordable(config, Usage(), planned_cost(config, [asked(1), asked(2)], None, words))
    check_affordable(config, Usage(prompt_tokens=10**9), planned_cost(config, [], None, words))


def test_a_table_of_judgments_has_its_price() -> None:
    judgments = pl.DataFrame({"requests": [1, 3], "prompt_tokens": [1000, 2000], "reply_tokens": [10, 20]})
    assert cost_of_judgments(settings(), judgments) == pytest.approx((2.0 * 3000 + 8.0 * 30) / 1e6)
    assert cost_of_judgments(settings(), judgments.clear()) == 0
    assert cost_of_judgments(settings(prices=None), judgments) is None


def test_a_cost_in_words() -> None:
    usage = Usage(requests=1, prompt_tokens=1_000_000, reply_tokens=500)
    assert money_of(settings(prices=None), usage) is None
    assert cost_sentence(settings(), usage) == "1 request, 1,000,500 tokens, 2.00 USD"
    assert cost_sentence(settings(prices=None), usage) == "1 request, 1,000,500 tokens"
