"""What judging takes: requests, tokens and money, before it begins and while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.judging.replies import Replies, Usage
from gateau_dagster.evaluation.judging.request import Asked
from gateau_dagster.readable import plural

_MILLION = 1_000_000
EXPECTED_REPLY = 300
"""Tokens of a reply, as long as none has come."""

CountTokens = Callable[[str], int]


class BudgetError(GateauError):
    """Reports that judging would take more than `evaluation.judge.budget` allows."""


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """Holds what is expected. kept: replies that are in the store and cost nothing. money: None without prices."""

    kept: int
    usage: Usage
    money: float | None

    def __add__(self, other: PlannedCost) -> PlannedCost:
        money = None if self.money is None or other.money is None else self.money + other.money
        return PlannedCost(kept=self.kept + other.kept, usage=self.usage + other.usage, money=money)

    def __mul__(self, times: int) -> PlannedCost:
        money = None if self.money is None else self.money * times
        return PlannedCost(kept=self.kept * times, usage=self.usage * times, money=money)


def planned_cost(
    settings: JudgeConfig,
    wanted: Sequence[Asked],
    replies: Replies | None,
    count: CountTokens,
    *,
    longest: Sequence[Asked] = (),
) -> PlannedCost:
    """Return what the requests without a kept reply will take; equal ones are asked once.

    `count` says a text's tokens by any tokenizer; it is scaled by what the judge's server counted for those requests
    that are kept, whose replies say how long the others will be. longest: further requests about answers that are not
    there yet, each of which will be another one, though they look alike.
    """
    each_once = {each.digest: each for each in wanted}.values()
    known = [] if replies is None else [(each, usage) for each in each_once if (usage := replies.usage(each))]
    missing = [*(each for each in each_once if replies is None or each not in replies), *longest]
    scale, reply = 1.0, float(EXPECTED_REPLY)
    if told := [(each, usage) for each, usage in known if usage.prompt_tokens]:  # of others nothing is known
        counted = sum(_tokens(each, count) for each, _ in told)
        scale = sum(usage.prompt_tokens for _, usage in told) / counted if counted else 1.0
        reply = sum(usage.reply_tokens for _, usage in told) / len(told)
    sizes = {each.digest: _tokens(each, count) for each in {each.digest: each for each in missing}.values()}
    usage = Usage(
        requests=len(missing),
        prompt_tokens=round(scale * sum(sizes[each.digest] for each in missing)),
        reply_tokens=round(sum(min(reply, each.max_tokens) for each in missing)),
    )
    return PlannedCost(kept=len(known), usage=usage, money=money_of(settings, usage))


def _tokens(asked: Asked, count: CountTokens) -> int:
    return sum(count(message["content"]) for message in asked.messages)


def money_of(settings: JudgeConfig, usage: Usage) -> float | None:
    """Return the cost in the currency of the prices; None without them."""
    prices = settings.prices
    if prices is None:
        return None
    return (prices.prompt * usage.prompt_tokens + prices.reply * usage.reply_tokens) / _MILLION


def cost_of_judgments(settings: JudgeConfig, judgments: pl.DataFrame) -> float | None:
    """Return what tables.JUDGMENTS is worth, whoever paid for it and when; None without prices."""
    sums = judgments.select(pl.col("requests", "prompt_tokens", "reply_tokens").cast(pl.Int64).sum()).row(0, named=True)
    return money_of(settings, Usage(**sums))


def cost_sentence(settings: JudgeConfig, usage: Usage) -> str:
    """Return a cost in words: 12 requests, 3,400 tokens, 0.05 USD."""
    money = money_of(settings, usage)
    tokens = usage.prompt_tokens + usage.reply_tokens
    price = "" if money is None else f", {money:,.2f} {settings.currency}"
    return f"{plural(usage.requests, 'request')}, {tokens:,} tokens{price}"


def check_affordable(settings: JudgeConfig, spent: Usage, planned: PlannedCost) -> None:
    """Raise BudgetError where what was spent and what is planned are together above the budget."""
    total = spent + planned.usage
    over = _above(settings, total)
    if planned.usage.requests and over:
        raise BudgetError(
            f"evaluation.judge.budget: judging needs about {cost_sentence(settings, planned.usage)}, and "
            f"{cost_sentence(settings, spent)} are spent; {over}. Raise it, or judge less: fewer variants, questions "
            "or repeats."
        )


def _above(settings: JudgeConfig, usage: Usage) -> str:
    """Return which limit is passed, in words; empty where none is."""
    budget, money = settings.budget, money_of(settings, usage)
    if budget.requests is not None and usage.requests > budget.requests:
        return f"the budget is {plural(budget.requests, 'request')}"
    if budget.money is not None and money is not None and money > budget.money:
        return f"the budget is {budget.money:,.2f} {settings.currency}"
    return ""


class Account:
    """Counts what has been spent so far; many threads spend from it."""

    def __init__(self, settings: JudgeConfig, spent: Usage) -> None:
        self._settings = settings
        self._before, self._new = spent, Usage()
        self._open = 0
        self._lock = threading.Lock()

    @property
    def new(self) -> Usage:
        """Return what was spent since this account was opened."""
        return self._new

    def open_request(self) -> None:
        """Count a request before it is sent. Those under way count as one request, their cost once it is known.

        Raises:
            BudgetError: there is none left for it.
        """
        with self._lock:
            spent = self._before + self._new
            over = _above(self._settings, spent + Usage(requests=self._open + 1))
            if over:
                raise BudgetError(
                    f"evaluation.judge.budget: {cost_sentence(self._settings, spent)} are spent, and {over}. What was "
                    "answered is kept: raise the budget and run again to go on from there."
                )
            self._open += 1

    def close_request(self, usage: Usage) -> None:
        """Count what a request took when it has ended; `usage` of one without a reply is empty."""
        with self._lock:
            self._open -= 1
            self._new += usage
