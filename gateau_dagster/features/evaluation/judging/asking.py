"""Ask a judge or a generator within its budget of requests and money, several requests at a time."""

# Why a budget is checked twice: before the first request, against an estimate of tokens, so that a plan that cannot be
# paid sends nothing. And before each request, against what is spent, because the estimate may be wrong.
#
# A request counts as soon as it is sent, so several threads cannot exceed the number of requests. Its money is known
# only with the reply. So the limit of money may be exceeded by the requests under way, at most `concurrency` of them.
#
# A reply is stored before it is used. A killed run therefore pays again only for the requests that were under way.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import polars as pl

from gateau_dagster.costs import PlannedCost, Usage
from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.features.evaluation.judging.replies import Judge, Replies, Reply, ServerCall
from gateau_dagster.features.evaluation.server_client import Patience, UnansweredError, ask_each, cut, overlong
from gateau_dagster.features.evaluation.servers import AskedConfig
from gateau_dagster.readable import plural
from gateau_dagster.storage.stamp import fingerprint

_MILLION = 1_000_000
EXPECTED_REPLY = 300
"""Expected tokens of a reply before any has arrived."""

CountTokens = Callable[[str], int]


class BudgetError(GateauError):
    """The requests would exceed the budget of their section."""


def planned_cost(
    settings: AskedConfig,
    wanted: Sequence[ServerCall],
    replies: Replies | None,
    count: CountTokens,
    *,
    longest: Sequence[ServerCall] = (),
) -> PlannedCost:
    """Return the expected cost of the requests without a kept reply; equal requests are sent once.

    Args:
        count: returns a text's tokens by any tokenizer. The sum is scaled by the server's counts for requests with a
            kept reply. The length of these replies also predicts the length of the others.
        longest: requests about answers that do not exist yet. Each is counted, even if they look alike.
    """
    # Models often give the same answer to a question. Equal requests are paid once, so they are counted once.
    each_once = {each.digest: each for each in wanted}.values()
    known = [] if replies is None else [(each, usage) for each in each_once if (usage := replies.usage(each))]
    missing = [*(each for each in each_once if replies is None or each not in replies), *longest]
    scale, reply = 1.0, float(EXPECTED_REPLY)
    if told := [(each, usage) for each, usage in known if usage.prompt_tokens]:  # some servers report no usage
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


def _tokens(asked: ServerCall, count: CountTokens) -> int:
    return sum(count(message["content"]) for message in asked.messages)


def money_of(settings: AskedConfig, usage: Usage) -> float | None:
    """Return the cost in the currency of the prices; None without them."""
    prices = settings.prices
    if prices is None:
        return None
    return (prices.prompt * usage.prompt_tokens + prices.reply * usage.reply_tokens) / _MILLION


def cost_of_judgments(settings: AskedConfig, judgments: pl.DataFrame) -> float | None:
    """Return the cost of tables.JUDGMENTS, including replies paid by earlier runs; None without prices."""
    sums = judgments.select(pl.col("requests", "prompt_tokens", "reply_tokens").cast(pl.Int64).sum()).row(0, named=True)
    return money_of(settings, Usage(**sums))


def cost_sentence(settings: AskedConfig, usage: Usage) -> str:
    """Describe a cost: 12 requests, 3,400 tokens, 0.05 USD."""
    money = money_of(settings, usage)
    tokens = usage.prompt_tokens + usage.reply_tokens
    price = "" if money is None else f", {money:,.2f} {settings.currency}"
    return f"{plural(usage.requests, 'request')}, {tokens:,} tokens{price}"


def check_affordable(settings: AskedConfig, spent: Usage, planned: PlannedCost) -> None:
    """Raise BudgetError if the spent and the planned cost together exceed the budget."""
    total = spent + planned.usage
    over = _above(settings, total)
    if planned.usage.requests and over:
        raise BudgetError(
            "evaluation.budget",
            f"{settings.place}.budget: {settings.doing} needs about {cost_sentence(settings, planned.usage)}, and "
            f"{cost_sentence(settings, spent)} are spent; {over}. Raise it, or {settings.less}.",
        )


def _above(settings: AskedConfig, usage: Usage) -> str:
    """Describe the exceeded limit; empty if there is none."""
    budget, money = settings.budget, money_of(settings, usage)
    if budget.requests is not None and usage.requests > budget.requests:
        return f"the budget is {plural(budget.requests, 'request')}"
    if budget.money is not None and money is not None and money > budget.money:
        return f"the budget is {budget.money:,.2f} {settings.currency}"
    return ""


class Account:
    """Counts what is spent; thread-safe."""

    def __init__(self, settings: AskedConfig, spent: Usage) -> None:
        self._settings = settings
        self._before, self._new = spent, Usage()
        self._open = 0
        self._lock = threading.Lock()

    @property
    def new(self) -> Usage:
        """Return the amount spent since this account was opened."""
        return self._new

    def open_request(self) -> None:
        """Count a request before it is sent. One under way counts as a request; its cost is added when it ends.

        Raises:
            BudgetError: the budget has no request left.
        """
        with self._lock:
            spent = self._before + self._new
            over = _above(self._settings, spent + Usage(requests=self._open + 1))
            if over:
                raise BudgetError(
                    "evaluation.budget",
                    f"{self._settings.place}.budget: {cost_sentence(self._settings, spent)} are spent, and {over}. "
                    "Earlier answers are kept: raise the budget, and run again to continue.",
                )
            self._open += 1

    def close_request(self, usage: Usage) -> None:
        """Add the usage of a request that has ended; it is empty without a reply."""
        with self._lock:
            self._open -= 1
            self._new += usage


# The requests, several at a time; every reply is stored before it is used.


class Asked(Protocol):
    """An object that makes a request."""

    @property
    def asked(self) -> ServerCall:
        """Return the request."""
        ...


Wanted = TypeVar("Wanted", bound=Asked)
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Exchange(Generic[Value]):
    """A request's last reply, its parsed content (None: unreadable), and the usage of all attempts."""

    value: Value | None
    reply: Reply
    usage: Usage


def means(settings: AskedConfig | None) -> str:
    """Return a digest for Asset.means: of the settings that affect whether a request gets a reply, but not which."""
    if settings is None:
        return ""
    given = settings.model_dump(include={"base_url", "key", "timeout"})
    # The keys keep their first names, so that digests of earlier versions stay valid.
    return fingerprint({**given, "max_retries": settings.retries, "token_limit": settings.token_limit})


@dataclass
class Asking(Generic[Wanted, Value]):
    """Asks requests in several threads.

    parse: returns the content of a reply; None if it is unreadable. again: how often it is requested again.

    The first new request is sent before the others, so that a common fault fails once. A request without a reply is
    tried once more, after all others, if another try may help.
    """

    parse: Callable[[str], Value | None]
    again: int
    judge: Judge
    replies: Replies
    settings: AskedConfig
    account: Account = field(init=False)
    patience: Patience = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asking: dict[str, threading.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spent = self.replies.spent
        self.account = Account(self.settings, spent)
        # A server that has replied before works; if it refuses requests for good, the requests are at fault.
        place, address = self.settings.place, self.settings.base_url
        self.patience = Patience(place, address, self.settings, works=bool(spent.requests))

    def results(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Exchange[Value] | UnansweredError] | None]:
        """Yield each request with its exchange or error as it is made; None about every second while nothing arrives.

        Raises:
            UnusableServerError: the server answers none of them.
            BudgetError: the budget is used up; replies that arrived are stored.
            TransientError: the server seems to be down.
        """
        new = next((each for each in wanted if each.asked not in self.replies), None)
        ordered = wanted if new is None else [new, *(each for each in wanted if each is not new)]
        most, alone = self.settings.concurrency, new is not None
        for ended in ask_each(ordered, lambda each: self._exchange(each.asked), most=most, alone=alone):
            yield from ended or [None]

    def _exchange(self, asked: ServerCall) -> Exchange[Value] | UnansweredError:
        """Return the exchange, or the reason why there is no reply; ask again after an unreadable reply."""
        total, value, reply = Usage(), None, None
        for attempt in range(self.again + 1):
            try:
                # The attempt is part of the request's digest. Otherwise the unreadable reply that is kept would be
                # returned again.
                reply = self._reply(replace(asked, attempt=attempt))
            except UnansweredError as error:
                if reply is None:
                    return error
                break
            total += reply.usage
            value = self.parse(reply.text)
            if value is not None:
                break
        assert reply is not None, "there is a first attempt"
        return Exchange(value=value, reply=reply, usage=total)

    def _reply(self, asked: ServerCall) -> Reply:
        """Return the reply. Of concurrent equal requests one is sent; the others wait for its stored reply.

        An unusable reply is paid for, so it is stored, too, under the settings that produced it.
        """
        with self._lock:
            alone = self._asking.setdefault(asked.digest, threading.Lock())
        with alone:
            reply = self.replies.find(asked)
            if reply is None or not reply.is_usable:
                reply = self.replies.find(asked, means(self.settings)) or self._paid_reply(asked)
        if (error := self._fault(asked, reply)) is not None:
            raise error
        return reply

    def _fault(self, asked: ServerCall, reply: Reply) -> UnansweredError | None:
        """Return the reason why a reply is unusable; None if it is usable."""
        if reply.is_usable:
            return overlong(self.settings.place, self.settings, reply.text, asked.max_tokens)
        if reply.finish_reason == "length":
            return cut(self.settings.place, self.settings, reply.reply_tokens)
        return UnansweredError(f"the reply is empty (finish_reason {reply.finish_reason})", passing=False)

    def _paid_reply(self, asked: ServerCall) -> Reply:
        self.account.open_request()
        usage = Usage()
        try:
            reply = self.judge(asked)
            # Judge and generator repeat texts, in which an address or an example of a key is no secret of this machine.
            reply = replace(reply, text=redacted(reply.text, shapes=False))
            usage = reply.usage
        except UnansweredError as error:
            self.patience.failed(error)
            raise
        finally:
            self.account.close_request(usage)
        error = self._fault(asked, reply)
        self.replies.keep(asked, reply, "" if error is None else means(self.settings))
        if error is None:
            self.patience.answered()
        else:
            self.patience.failed(error)
        return reply
