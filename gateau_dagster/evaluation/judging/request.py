"""A request to a judge, its reply, and the digest that prevents paying for it twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.storage.stamp import fingerprint


@dataclass(frozen=True, kw_only=True)
class JudgeCall:
    """A request to a judge: everything that its reply depends on.

    messages: `role` and `content`. max_tokens: of the reply. repeat: of the judgment, from 0.
    attempt: how many unreadable replies came before. temperature: None where none is sent.
    more: further fields that the settings send.
    """

    judge: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float | None = 0.0
    repeat: int = 0
    attempt: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        settings: JudgeConfig,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        repeat: int = 0,
    ) -> JudgeCall:
        """Return a request with the sampling settings that the configuration sends."""
        sent = settings.sampling(temperature=temperature)
        more = {name: sent[name] for name in ("top_p", "seed") if name in sent}
        return cls(
            judge=settings.model,
            messages=messages,
            max_tokens=max_tokens,
            temperature=sent.get("temperature"),
            repeat=repeat,
            more=more | ({"extra_body": settings.extra_body} if settings.extra_body else {}),
        )

    @property
    def digest(self) -> str:
        """Return a digest that is equal for equal requests, whatever answer, variant or benchmark they belong to."""
        return fingerprint(
            {
                "judge": self.judge,
                "messages": [dict(message) for message in self.messages],
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "repeat": self.repeat,
                "attempt": self.attempt,
                **({"more": dict(self.more)} if self.more else {}),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A judge's reply.

    prompt_tokens, reply_tokens: as the server counts them; estimated where it does not report them.
    seconds: wall-clock time. finish_reason: `length` where the limit cut it; earlier versions stored none.
    """

    text: str
    prompt_tokens: int
    reply_tokens: int
    seconds: float
    finish_reason: str = "stop"

    @property
    def is_usable(self) -> bool:
        """Return whether the reply may hold a verdict: one that is truncated or empty holds none."""
        return bool(self.text.strip()) and self.finish_reason != "length"


class Judge(Protocol):
    """A judge that answers requests."""

    def __call__(self, asked: JudgeCall) -> Reply:
        """Return the reply to a request; called from several threads.

        Raises:
            UnansweredError: the judge does not answer this request.
            UnusableServerError: the judge answers no request.
        """
        ...

    def under_way(self) -> str:
        """Describe how many requests wait for their reply, and for how long; empty where none does."""
        ...
