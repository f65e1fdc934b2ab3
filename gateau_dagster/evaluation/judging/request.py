"""A request to a judge, what came of it, and the digest by which it is never paid for twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.storage.stamp import fingerprint


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a judge is asked: everything that its reply depends on.

    messages: `role` and `content`. max_tokens: of the reply. repeat: of the judgment, from 0. attempt: how many
    replies to it could not be read before this one.
    """

    judge: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float = 0.0
    repeat: int = 0
    attempt: int = 0

    @property
    def digest(self) -> str:
        """Equal for equal requests, whichever answer, variant or benchmark they are about."""
        return fingerprint(
            {
                "judge": self.judge,
                "messages": [dict(message) for message in self.messages],
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "repeat": self.repeat,
                "attempt": self.attempt,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a judge said. prompt_tokens, reply_tokens: as the server counted them, or about, where it does not say.
    seconds: wall-clock time.
    """

    text: str
    prompt_tokens: int
    reply_tokens: int
    seconds: float


class UnansweredError(Exception):
    """One request got no reply that can be used: the message says why, and the others go on.

    passing: whether it may be answered another time.
    """

    def __init__(self, reason: str, *, passing: bool) -> None:
        super().__init__(redacted(reason))
        self.passing = passing


class JudgeRefusedError(GateauError):
    """The server will answer none of the requests: a wrong key, a model that it does not have."""


class Judge(Protocol):
    """Whatever answers a request."""

    def __call__(self, asked: Asked) -> Reply:
        """Called from several threads.

        Raises:
            UnansweredError: for this request.
            JudgeRefusedError: for all of them.
        """
        ...
