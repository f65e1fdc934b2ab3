"""Store the replies of judges and generators unchanged, one file per reply, so that no reply is paid for twice.

A file is written as soon as its reply arrives and never changes, so that processes need no lock. Its name contains the
token counts, so that a listing gives what has been spent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gateau_dagster.costs import Usage
from gateau_dagster.features.evaluation.benchmark import JudgeRequest
from gateau_dagster.features.evaluation.servers import AskedConfig, JudgeConfig
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.stamp import fingerprint

BYTES_OF_A_TOKEN = 3  # of UTF-8, as a cautious estimate; 4 in English
PROMPT = "prompt"
"""The role of a message that is no turn: the server continues its text."""


@dataclass(frozen=True, kw_only=True)
class ServerCall:
    """A request to a judge or a generator: everything that its reply depends on.

    model: the server's name of the model. messages: `role` and `content`; a message with role PROMPT is the only one.
        max_tokens: limit of the reply. repeat: number of the judgment, from 0.
    attempt: number of earlier unreadable replies. temperature: None if no temperature is sent.
    more: other fields that the settings send. json_mode: whether the server is asked for its JSON mode; the messages
        ask for JSON, too, so replies that were kept without this mode stay valid.
    """

    model: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float | None = 0.0
    repeat: int = 0
    attempt: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    json_mode: bool = False

    @classmethod
    def of(cls, settings: AskedConfig, request: JudgeRequest, repeat: int = 0) -> ServerCall:
        """Return a request with the sampling settings that the configuration sends."""
        sent = settings.sampling(temperature=request.temperature)
        more = {name: sent[name] for name in ("top_p", "seed") if name in sent}
        return cls(
            model=settings.model,
            messages=request.messages,
            max_tokens=request.max_tokens,
            temperature=sent.get("temperature"),
            repeat=repeat,
            json_mode=request.json_mode,
            more=more | ({"extra_body": settings.extra_body} if settings.extra_body else {}),
        )

    @property
    def digest(self) -> str:
        """Return a digest that is equal for equal requests, whatever answer, variant or benchmark they belong to."""
        return fingerprint(
            {
                "judge": self.model,  # a name of stored replies
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
    """The reply of a judge or a generator.

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
        """Return whether the reply may contain a verdict; a truncated or empty reply contains none."""
        return bool(self.text.strip()) and self.finish_reason != "length"

    @property
    def usage(self) -> Usage:
        """Return the usage of one request."""
        return Usage(requests=1, prompt_tokens=self.prompt_tokens, reply_tokens=self.reply_tokens)


class Judge(Protocol):
    """A judge or a generator that answers requests."""

    def __call__(self, asked: ServerCall) -> Reply:
        """Return the reply to a request; called from several threads.

        Raises:
            UnansweredError: the server does not answer this request.
            UnusableServerError: the server answers no request.
        """
        ...

    def under_way(self) -> str:
        """Describe the number of requests that wait for a reply, and their time; empty if none waits."""
        ...


_NAME = re.compile(r"^(?P<digest>[0-9a-f]{32})-(?P<prompt>\d+)-(?P<reply>\d+)\.json$")


class Replies:
    """The replies of one model: `<root>/<folder>/<model>/<digest>-<prompt tokens>-<reply tokens>.json`."""

    def __init__(self, files: Files, model: str, folder: str = JudgeConfig.replies_folder) -> None:
        self._files = files
        self._folder = f"{folder}/{fingerprint({'judge': model})[:12]}"
        self._names: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """List the stored replies again."""
        for name in self._files.names(self._folder):
            if match := _NAME.match(name):
                self._names[match["digest"]] = name

    def __contains__(self, asked: ServerCall) -> bool:
        return asked.digest in self._names

    def is_unusable(self, asked: ServerCall, under: str) -> bool:
        """Return whether an unusable reply is stored that the settings `under` produced; no file is read."""
        return _digest(asked, under) in self._names

    def usage(self, asked: ServerCall) -> Usage | None:
        """Return the usage of the reply, or None if there is no reply; no file is read."""
        match = _NAME.match(self._names.get(asked.digest, ""))
        return _usage(match) if match else None

    @property
    def spent(self) -> Usage:
        """Return the usage of all replies of this model in this store."""
        usage = Usage()
        for match in filter(None, map(_NAME.match, [*self._names.values()])):
            usage += _usage(match)
        return usage

    def find(self, asked: ServerCall, unusable_under: str = "") -> Reply | None:
        """Return the reply, or None if it is missing; a damaged file is removed.

        Raises:
            GateauError, TransientError: the store cannot be read.
        """
        digest = _digest(asked, unusable_under)
        name = self._names.get(digest)
        if name is None:
            return None
        try:
            reply = _read(self._files.read(f"{self._folder}/{name}"))
        except FileNotFoundError:
            reply = None
        if reply is None:
            del self._names[digest]
            self._files.remove(f"{self._folder}/{name}")
        return reply

    def keep(self, asked: ServerCall, reply: Reply, unusable_under: str = "") -> None:
        """Store the reply; call this before it is used.

        `unusable_under`: for a reply that is paid for but unusable, the settings that produced it.

        Raises:
            GateauError, TransientError: the store cannot be written.
        """
        digest = _digest(asked, unusable_under)
        name = f"{digest}-{reply.prompt_tokens}-{reply.reply_tokens}.json"
        content = asdict(reply)
        text = json.dumps({**content, "check": fingerprint(content)})
        self._files.write(f"{self._folder}/{name}", text.encode())
        self._names[digest] = name


def _digest(asked: ServerCall, unusable_under: str) -> str:
    if not unusable_under:
        return asked.digest
    return fingerprint({"request": asked.digest, "unusable": unusable_under})


def _usage(name: re.Match[str]) -> Usage:
    return Usage(requests=1, prompt_tokens=int(name["prompt"]), reply_tokens=int(name["reply"]))


def _read(data: bytes) -> Reply | None:
    """Return the reply; None for content that `Replies.keep` did not write."""
    try:
        content = json.loads(data)
        check = content.pop("check")
        return Reply(**content) if check == fingerprint(content) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
