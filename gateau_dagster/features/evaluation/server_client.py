"""Client of servers with OpenAI's interface, for both judges and engines."""

# Why a client with asyncio for blocking callers: the timeouts of a blocking client count for each read. A server that
# sends a byte now and then would never exceed them. A task can be cancelled at one deadline for connection, reply and
# retries.
#
# What it costs: each request opens a new loop and a new connection. The handshake is little beside a generated reply.
# Requests run side by side in threads, at most `concurrency` of them.
#
# Whom it serves: any server that is nearly compatible with OpenAI's interface. So every field of a reply is checked.
# Every failure is one of two kinds: one request has no reply, or the work ends because no request will have one.

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from gateau_dagster.errors import GateauError, TransientError, redacted, secret_variable_named
from gateau_dagster.features.evaluation.servers import ServerConfig
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response


Request = TypeVar("Request")
Made = TypeVar("Made")

MOST_BYTES = 16 << 20
"""Most bytes of a reply that are read: far more than any answer has."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before the first retry, and at most before any later one, where the server does not name a time."""
_SECONDS_BETWEEN_NOTES = 1.0
_LONGEST_REASON = 300  # characters
_MOST_ERROR_BYTES = 64 << 10
_FEWEST_FAILURES = 8
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_PASSING = {408, 409, 425, 429}
_TEXT_PARTS, _THOUGHT_PARTS = {"text", "output_text"}, {"thinking", "reasoning", "redacted_thinking"}
_LIMITS = ("max_tokens", "max_completion_tokens")
_FORMAT = "response_format"
_without_json_mode: set[tuple[str, str]] = set()  # servers, by address and model, that refuse it
_LETTERS_OF_A_TOKEN = 128  # the longest tokens are runs of blanks
_TOO_LONG = re.compile(r"(?i)context.{0,20}(?:length|window|size)|too large|too long|maximum.{0,20}length")


class UnansweredError(Exception):
    """One request got no usable reply. The message gives the reason; other requests go on.

    Args:
        passing: whether the same request may be answered another time.
        silent: whether the server sent no reply before the deadline.
        rejected: whether the server finds fault with the request's fields (400, 422).
    """

    def __init__(self, reason: str, *, passing: bool, silent: bool = False, rejected: bool = False) -> None:
        super().__init__(redacted(reason))
        self.passing, self.silent, self.rejected = passing, silent, rejected

    @property
    def is_worth_another_try(self) -> bool:
        """Return whether to ask once more, after all others; a request that timed out would time out again."""
        return self.passing and not self.silent


class UnusableServerError(GateauError):
    """The server will answer no request, because of a wrong key, an unknown model, or a timeout."""


@dataclass(frozen=True, kw_only=True)
class ServerReply:
    """A server's reply.

    Args:
        text: unchanged; it may hold lone surrogates.
        finish_reason: the reason why the reply ends; `stop` if the server gives none.
        prompt_tokens: the server's count; None if it reports no count or an invalid one.
        read_tokens: prompt_tokens with the tokens from the server's cache, which some servers count separately.
        reply_tokens: as prompt_tokens.
        seconds: from the first attempt to the last byte.
    """

    text: str
    finish_reason: str
    prompt_tokens: int | None
    read_tokens: int | None
    reply_tokens: int | None
    seconds: float


def server_key(place: str, variable: str | None, address: str) -> str:
    """Return the key of a server at `place` in the file; the word `none` for a server without a key.

    Raises GateauError if its environment variable is not set, or holds an invalid key.
    """
    if variable is None:
        return "none"
    secret_variable_named(variable)
    key = os.environ.get(variable, "").strip()
    if not key:
        raise GateauError(
            "evaluation.server_key",
            f"{place}.key: the environment variable {variable} is not set. Set it to the key of {address}, "
            "or give key: null for a server without a key.",
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise GateauError(
            "evaluation.server_key",
            f"{place}.key: the environment variable {variable} contains characters that no key has, such as "
            f"line breaks. Set it to the key of {address} alone.",
        )
    return key


class Client:
    """Asks one server; each answer has one deadline, `timeout` after its first attempt, retries included.

    The client is thread-safe.

    Args:
        place: of the section in the file, for messages.
        address: its base_url, with the variant's name filled in.
    """

    def __init__(self, place: str, settings: ServerConfig, address: str) -> None:
        self.place, self.address = place, address
        self._settings, self._key = settings, server_key(place, settings.key, address)
        self._lock = threading.Lock()
        self._started: dict[int, float] = {}
        self._requests = 0

    def ask_json(self, path: str, body: Mapping[str, Any], *, limit: int, asks: Mapping[str, Any]) -> ServerReply:
        """Return the reply to a request for JSON, in the server's JSON mode if it has one.

        A server that refuses the mode is asked without it, and remembered. `extra_body` may name another
        `response_format`; null leaves it out. Arguments and errors are those of `ask`.
        """
        server = (self.address, str(body.get("model")))
        if _FORMAT in self._settings.extra_body or server in _without_json_mode:
            return self.ask(path, body, limit=limit, asks=asks)
        try:
            return self.ask(path, {**body, _FORMAT: {"type": "json_object"}}, limit=limit, asks=asks)
        except UnansweredError as error:
            if not error.rejected:
                raise
        reply = self.ask(path, body, limit=limit, asks=asks)
        _without_json_mode.add(server)
        return reply

    def ask(self, path: str, body: Mapping[str, Any], *, limit: int, asks: Mapping[str, Any]) -> ServerReply:
        """Return the reply to a request.

        Args:
            path: relative to the address, such as `chat/completions`.
            body: fields that are sent whatever the settings are.
            limit: most tokens of the reply; sent under the name in `token_limit`.
            asks: sampling parameters of the request, from `ServerConfig.sampling`.

        Raises:
            UnansweredError: the server does not answer this request.
            UnusableServerError: the server answers no request.
        """
        sent = {**body, **asks}
        if self._settings.token_limit is not None:
            sent[self._settings.token_limit] = limit
        sent = {name: value for name, value in {**sent, **self._settings.extra_body}.items() if value is not None}
        with self._lock:
            self._requests += 1
            number, started = self._requests, time.monotonic()
            self._started[number] = started
        try:
            data = asyncio.run(self._in_time(path, json.dumps(sent).encode(), sent))
            return self._read(data, started)
        finally:
            with self._lock:
                del self._started[number]

    def under_way(self) -> str:
        """Describe the number of requests that wait for a reply, and their time; empty if none waits."""
        with self._lock:
            waiting = [*self._started.values()]
        if not waiting:
            return ""
        return f"{plural(len(waiting), 'request')} under way, the oldest for {time.monotonic() - min(waiting):.0f} s"

    async def _in_time(self, path: str, data: bytes, sent: Mapping[str, Any]) -> bytes:
        timeout = self._settings.timeout
        failed: UnansweredError | None = None
        try:
            async with asyncio.timeout(timeout) as deadline:
                for attempt in range(self._settings.retries + 1):
                    try:
                        return await self._once(path, data, sent)
                    except _PassingError as error:
                        failed = UnansweredError(str(error), passing=True)
                        pause = error.pause
                        if pause is None:
                            usual = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
                            # At random, since the threads that a busy server has refused together would otherwise
                            # return together.
                            pause = usual * random.uniform(0.75, 1.0)
                    when = deadline.when() or 0.0
                    # Without waiting for a deadline that comes before the next attempt: the server's error says more
                    # than a timeout.
                    if attempt == self._settings.retries or asyncio.get_running_loop().time() + pause >= when:
                        break
                    await asyncio.sleep(pause)
        except TimeoutError:
            said = f"; before, {failed}" if failed else ""
            raise UnansweredError(
                f"no complete reply within {timeout:g} s ({self.place}.timeout){said}", passing=True, silent=True
            ) from None
        assert failed is not None, "there is a first attempt"
        raise failed from None

    async def _once(self, path: str, data: bytes, sent: Mapping[str, Any]) -> bytes:
        """Send the request once, over a new connection, and return the body of the reply."""
        import httpx2

        headers = {
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        try:
            async with (
                httpx2.AsyncClient(verify=_trusted(), timeout=None) as client,
                _posted(client, f"{self.address.rstrip('/')}/{path}", data, headers) as response,
            ):
                if response.status_code != 200:
                    body = await _body(response, _MOST_ERROR_BYTES, whole=False)
                    raise self._failure(response, body, sent)
                body = await _body(response, MOST_BYTES, whole=True)
        except httpx2.DecodingError as error:
            raise UnansweredError(f"the reply's encoding cannot be read: {self._line(error)}", passing=True) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError) as error:
            raise _PassingError(f"no reply: {self._line(error)}") from None
        kind = response.headers.get("content-type", "").lower()
        if body.lstrip()[:1] == b"<":
            raise UnansweredError("the reply is a page, not JSON: base_url usually ends with /v1", passing=True)
        if "event-stream" in kind:
            raise UnansweredError("the reply is a stream of events, which was not asked for", passing=True)
        return body

    def _read(self, data: bytes, started: float) -> ServerReply:
        """Parse a reply. Every field is checked, because servers omit fields and invent others."""
        found = _json(data)
        if not isinstance(found, dict):
            raise UnansweredError(f"the reply is no JSON object: {self._line(_start(data))}", passing=True)
        choices, usage = found.get("choices"), found.get("usage")
        if not choices and found.get("error") is not None:
            raise UnansweredError(f"the reply is an error: {self._line(_message(found))}", passing=True)
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise UnansweredError("the reply holds no choices, so no message", passing=True)
        reason = choice.get("finish_reason")
        text = _text(choice)
        if text is None:
            raise UnansweredError(
                f"the reply's message holds no text (finish_reason {self._line(str(reason))})"
                + (f"; {_limit_cure(self.place, self._settings)}" if reason == "length" else ""),
                passing=False,
            )
        prompt, cached = _count(usage, "prompt_tokens"), _cached_tokens(usage)
        return ServerReply(
            text=text.replace(self._key, "***") if self._settings.key is not None else text,
            finish_reason=self._line(reason) if isinstance(reason, str) and reason else "stop",
            prompt_tokens=prompt + cached if prompt and cached > prompt else prompt,
            read_tokens=prompt + cached if prompt else None,
            reply_tokens=_count(usage, "completion_tokens"),
            seconds=time.monotonic() - started,
        )

    def _failure(self, response: Response, body: bytes, sent: Mapping[str, Any]) -> Exception:
        status, found = response.status_code, _json(body)
        code = _field(found, "code")
        said = self._line(_message(found) or _start(body)) or "without a reason"
        cure = ""
        if status in {401, 403}:
            variable = self._settings.key
            cure = f"set {variable} to a key that it accepts" if variable else "name the key's variable in `key`"
            cure += ", and run again; earlier answers are kept."
        elif status == 404:
            cure = f"correct base_url or model ({self._line(str(sent.get('model')))}), and run again."
        elif status == 402 or code in _NO_CREDIT:
            cure = "add credit, and run again; earlier answers are kept."
        elif 300 <= status < 400:
            target = self._line(response.headers.get("location", "nowhere"))
            cure = f"it redirects to {target}, but keys go to no other address. Correct base_url, and run again."
        if cure:
            place = f"{self.place}: {self.address} answers {status} ({said})"
            return UnusableServerError("evaluation.server_unusable", f"{place}: {cure}")
        if status in _PASSING or status >= 500:
            return _PassingError(f"{status}: {said}", pause=_asked_pause(response))
        rejected = status in {400, 422}
        hint = self._leaves_out(found, _start(body, _MOST_ERROR_BYTES), sent) if rejected else ""
        return UnansweredError(f"{status}: {said}{hint}", passing=False, rejected=rejected)

    def _leaves_out(self, found: Any, said: str, sent: Mapping[str, Any]) -> str:
        """Return the setting that omits the parameter named in a refusal; empty if it names none."""
        given = [name for name in sent if name not in {"model", "messages", "prompt"}]
        places = {name: match.start() for name in given if (match := re.search(rf"\b{re.escape(name)}\b", said))}
        param = _field(found, "param")
        named = param if param in given else min(places, key=places.__getitem__, default=None)
        if named is None:
            return ""
        if named in _LIMITS:
            other = _LIMITS[1 - _LIMITS.index(named)]
            if re.search(rf"\b{other}\b", said) and not _TOO_LONG.search(said):
                return f". `{self.place}.token_limit: {other}` names the limit so"
            return "" if _TOO_LONG.search(said) else f". `{self.place}.token_limit: null` leaves it out"
        if named in {"temperature", "top_p", "seed"}:
            return f". `{self.place}.{named}: null` leaves it out"
        if named in self._settings.extra_body:
            return f". Take it out of {self.place}.extra_body"
        return f". `{self.place}.extra_body: {{{named}: null}}` leaves it out"

    def _line(self, said: object) -> str:
        """Return one printable line for terminals and tables, without the key."""
        text = str(said) or type(said).__name__
        if self._settings.key is not None:
            text = text.replace(self._key, "***")
        text = "".join(letter if letter.isprintable() else " " for letter in redacted(text))
        return " ".join(text.split())[:_LONGEST_REASON]


def overlong(place: str, settings: ServerConfig, text: str, limit: int) -> UnansweredError | None:
    """Return the error for a reply that is longer than the limit that was sent allows; None for any other."""
    if settings.token_limit is None or len(text) <= _LETTERS_OF_A_TOKEN * limit:
        return None
    return UnansweredError(
        f"the reply has {len(text):,} characters, more than {limit:,} tokens can have: the server ignores "
        f"{settings.token_limit}; {place}.token_limit may need the other name",
        passing=False,
    )


def cut(place: str, settings: ServerConfig, tokens: int) -> UnansweredError:
    """Return the error for a truncated reply if only a complete one is usable."""
    return UnansweredError(f"the reply was cut after {tokens:,} tokens; {_limit_cure(place, settings)}", passing=False)


def _limit_cure(place: str, settings: ServerConfig) -> str:
    raised = f"raise {place}.{settings.limit_key}, or " if settings.limit_key else ""
    return f"{raised}{place}.token_limit: null asks without a limit"


class Patience:
    """Counts unanswered requests, and ends the work when no more replies can be expected.

    It ends the work after more consecutive failures than a working server has, or when nothing is answered within two
    deadlines. It also ends it when more requests time out than are answered, and at least four rounds of them. Refusals
    count only until the first reply, because later ones may be due to the requests.

    Args:
        works: whether the server has answered before.
    """

    def __init__(self, place: str, address: str, settings: ServerConfig, *, works: bool = False) -> None:
        self._name, self._settings = f"{place}: {address}", settings
        self._lock = threading.Lock()
        self._works, self._answered = works, False
        self._answers = self._silent = 0
        self._failures, self._last_reply = 0, time.monotonic()
        self._last: UnansweredError | None = None

    def answered(self) -> None:
        """Record a reply."""
        with self._lock:
            self._works = self._answered = True
            self._answers += 1
            self._failures, self._last_reply = 0, time.monotonic()

    def failed(self, error: UnansweredError) -> None:
        """Record a request without a reply.

        Raises:
            UnusableServerError, TransientError: more requests would only cost time.
        """
        with self._lock:
            self._last = error
            if self._works and not error.passing:
                return
            self._failures += 1
            self._silent += error.silent
            mostly_silent = self._silent >= max(_FEWEST_FAILURES, 4 * self._settings.concurrency, self._answers + 1)
            waited = time.monotonic() - self._last_reply
            many = self._failures >= max(_FEWEST_FAILURES, 2 * self._settings.concurrency)
        if error.silent and not self._answered and waited >= 1.9 * self._settings.timeout:
            raise UnusableServerError(
                "evaluation.server_silent",
                f"{self._name} has answered nothing for {waited:.0f} s: {error}. Check the server, or raise "
                "timeout, and run again; earlier answers are kept.",
            )
        if error.silent and mostly_silent:
            raise UnusableServerError(
                "evaluation.server_silent",
                f"{self._name} has left {self._silent:,} of {self._silent + self._answers:,} requests without a "
                f"reply in their time, the last one for this reason: {error}. Raise timeout, or lower "
                "concurrency, and run again; earlier answers are kept.",
            )
        if many:
            raise self._down(error)

    def check(self) -> None:
        """Raise what `failed` raises where the work has ended without any reply."""
        last = self._last
        if last is not None and not self._answered and (last.passing or not self._works):
            raise self._down(last)

    def _down(self, last: UnansweredError) -> GateauError:
        kind = TransientError if last.passing and not last.silent else UnusableServerError
        return kind(
            "evaluation.server_unusable",
            f"{self._name} leaves every request without a usable reply, the last one "
            f"for this reason: {last}. Correct that and run again; what was answered is kept.",
        )


def ask_each(
    wanted: Iterable[Request], ask: Callable[[Request], Made | UnansweredError], *, most: int, alone: bool
) -> Iterator[list[tuple[Request, Made | UnansweredError]]]:
    """Yield requests with the results of `ask` as they end; an empty list for each second without a result.

    `ask` runs in several threads. A request whose error is worth another try is asked once more, after all others. When
    `ask` raises, requests under way still end and are yielded; then the error is raised.

    Args:
        most: requests that are asked and not yet yielded.
        alone: whether the first request ends before the others are asked, so that a common fault fails once.
    """
    waiting, later, second_time = deque(wanted), deque[Request](), False
    with ThreadPoolExecutor(most) as pool:
        running: dict[Future[Made | UnansweredError], Request] = {}
        while waiting or running or later:
            if not waiting and not running:
                waiting, later, second_time = later, deque(), True
            # A request that has ended may have failed: then no other one is sent.
            while waiting and len(running) < (1 if alone else most) and not any(each.done() for each in running):
                request = waiting.popleft()
                running[pool.submit(ask, request)] = request
            done, _ = wait(running, timeout=_SECONDS_BETWEEN_NOTES, return_when=FIRST_COMPLETED)
            # The other requests under way will be paid for, so their replies are awaited and yielded before the error.
            if any(each.exception() for each in done):
                done, waiting, later = wait(running).done, deque(), deque()
            ended: list[tuple[Request, Made | UnansweredError]] = []
            for future in done:
                request = running.pop(future)
                if future.exception() is None:
                    alone, made = False, future.result()
                    if isinstance(made, UnansweredError) and made.is_worth_another_try and not second_time:
                        later.append(request)
                    else:
                        ended.append((request, made))
            # The caller saves these replies before others are asked, so a kill costs at most `most` replies.
            yield ended
            for future in done:
                future.result()  # raises the error of the request


class _PassingError(Exception):
    """An attempt failed temporarily. pause: seconds that the server asks for."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@cache
def _trusted() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _posted(client: AsyncClient, address: str, data: bytes, headers: Mapping[str, str]) -> Any:
    return client.stream("POST", address, content=data, headers=dict(headers))


async def _body(response: Response, most: int, *, whole: bool) -> bytes:
    """Return at most `most` bytes of the body. Raises UnansweredError for more where `whole` is set."""
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > most:
            if whole:
                raise UnansweredError(f"the reply is longer than {most >> 20} MiB", passing=True)
            break
    return bytes(data[:most])


def _json(data: bytes) -> Any:
    """Parse a JSON text, with null for a number that is not finite; return None where it is invalid."""
    try:
        return json.loads(data, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _start(data: bytes, most: int = 200) -> str:
    return data[:most].decode("utf-8", errors="replace") or "it is empty"


def _field(found: Any, name: str) -> str | None:
    """Return a field of the error in a body, in any of the known formats."""
    error = found.get("error", found) if isinstance(found, dict) else None
    value = error.get(name) if isinstance(error, dict) else None
    return value if isinstance(value, str) else None


def _message(found: Any) -> str:
    if isinstance(found, Sequence) and not isinstance(found, str) and found:  # Google's servers send a list
        found = found[0]
    if not isinstance(found, dict):
        return ""
    said = _field(found, "message") or found.get("error") or found.get("detail") or found.get("message")
    return said if isinstance(said, str) else json.dumps(said) if said else ""


def _text(choice: Mapping[str, Any]) -> str | None:
    """Return the text of a choice; None if it holds none."""
    message = choice.get("message")
    if not isinstance(message, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else None
    content = message.get("content")
    if isinstance(content, list):
        parts: list[str] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
                parts.append(part["text"])
            elif kind not in _THOUGHT_PARTS:
                return None
        content = "".join(parts) if parts else None
    if content is None:
        content = message.get("refusal")
    return content if isinstance(content, str) else None


def _count(usage: Any, name: str) -> int | None:
    """Return a number of tokens; None for an invalid value."""
    value = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return None
    # The tables hold counts in 32 bits.
    return int(value) if 0 <= value < 2**31 else None


def _cached_tokens(usage: Any) -> int:
    """Return the number of prompt tokens that a server took from its cache, in any of the known formats."""
    if not isinstance(usage, dict):
        return 0
    places = (usage.get("prompt_tokens_details"), usage)
    names = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
    return max(_count(place, name) or 0 for place in places for name in names)


_READ_WHOLE, _SURPLUS = 0.9, 16  # what templates and tokenizers may make of a prompt: a share, and tokens
_WORD, _IDEOGRAPH = re.compile(r"\S+"), re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def unread_tokens(sent: int, read: int) -> int:
    """Return how many of the tokens that were sent a server did not read, by its own count; 0 for a small difference.

    A server whose window is too small cuts a prompt without a word, such as Ollama at num_ctx.
    """
    return sent - read if read < _READ_WHOLE * sent and sent - read >= _SURPLUS else 0


def least_tokens(text: str) -> int:
    """Return the fewest tokens that a text has under any tokenizer: no token spans two words, or four ideographs.

    It is at most a third of the bytes, as which a prompt counts where the server does not count it.
    """
    words = len(_WORD.findall(text)) + len(_IDEOGRAPH.findall(text)) // 4
    return min(words, len(text.encode(errors="surrogatepass")) // 3)


def partly_read(prompts: int, counts: Sequence[tuple[int, int]], *, at_least: bool = False) -> str:
    """Return a sentence about prompts that a server read in part; empty if there are none.

    Args:
        prompts: all of them.
        counts: of each such prompt, the tokens sent and the tokens read.
        at_least: whether the tokens sent are counted by words.
    """
    if not counts:
        return ""
    sent, read = (sum(each) for each in zip(*counts, strict=True))
    about = "at least " if at_least else ""
    return (
        f"{len(counts):,} of {plural(prompts, 'prompt')} read in part only: by its own count the server read {read:,} "
        f"of {about}{sent:,} tokens. Raise the context length that it serves, such as num_ctx of Ollama, and ask "
        "again"
    )


def _asked_pause(response: Response) -> float | None:
    """Return the seconds that a server asks to wait; None if it gives none."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = response.headers.get(name, "")
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (ValueError, OverflowError, TypeError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
