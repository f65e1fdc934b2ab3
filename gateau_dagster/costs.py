"""Record the requests to a server, with their tokens and the money that they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The number of answered requests, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            reply_tokens=self.reply_tokens + other.reply_tokens,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self + other * -1

    def __mul__(self, times: int) -> Usage:
        return Usage(
            requests=self.requests * times,
            prompt_tokens=self.prompt_tokens * times,
            reply_tokens=self.reply_tokens * times,
        )


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """The expected cost. kept: replies in the store, which cost nothing. money: None without prices."""

    kept: int
    usage: Usage
    money: float | None

    @property
    def record(self) -> dict[str, Any]:
        """Return the cost for programs."""
        tokens = {"prompt": self.usage.prompt_tokens, "reply": self.usage.reply_tokens}
        return {"kept": self.kept, "requests": self.usage.requests, "money": self.money, "tokens": tokens}

    def __add__(self, other: PlannedCost) -> PlannedCost:
        money = None if self.money is None or other.money is None else self.money + other.money
        return PlannedCost(kept=self.kept + other.kept, usage=self.usage + other.usage, money=money)

    def __mul__(self, times: int) -> PlannedCost:
        money = None if self.money is None else self.money * times
        return PlannedCost(kept=self.kept * times, usage=self.usage * times, money=money)
