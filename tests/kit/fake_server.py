"""A server with OpenAI's interface that works, refuses and fails in whatever way a test names."""

import gzip
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from tests.kit.local_server import QuietHandler, served

Act = Callable[["Handler"], None]
Server = TypeVar("Server", bound="FakeServer")


class FakeServer(ThreadingHTTPServer):
    """It does with each request what `act` says.

    Attributes:
        requests: the bodies of all requests, in order.
        received: their paths and headers.
        most_at_once: requests that were on their way at the same time.
        closing: is set at the end, for behaviours that wait.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, act: Act) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.act = act
        self.requests: list[dict[str, Any]] = []
        self.received: list[tuple[str, dict[str, str]]] = []
        self.seen: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()

    @property
    def address(self) -> str:
        """As in `base_url`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class Handler(QuietHandler):
    """One connection. number: of the request; before: how often it was sent before; said: its messages or prompt."""

    protocol_version = "HTTP/1.1"
    server: FakeServer  # type: ignore[assignment]
    body: Mapping[str, Any]
    said: str
    number: int
    before: int

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.said, server = json.dumps(self.body.get("messages") or self.body["prompt"]), self.server
        with server.lock:
            self.number, self.before = len(server.requests), server.seen[self.said]
            server.requests.append({**self.body})
            server.received.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            server.seen[self.said] += 1
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            server.act(self)
        finally:
            with server.lock:
                server.at_once -= 1

    @property
    def key(self) -> str:
        """What the client is known by."""
        return self.headers["Authorization"].removeprefix("Bearer ")

    def completion(self, content: Any, reason: Any = "stop", **more: Any) -> dict[str, Any]:
        """Return a reply to this request, chat or not."""
        said = {"message": {"role": "assistant", "content": content}} if "messages" in self.body else {"text": content}
        usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        return {"id": "x", "choices": [{"index": 0, "finish_reason": reason, **said}], "usage": usage, **more}

    def say(self, content: Any, reason: Any = "stop", **more: Any) -> None:
        self.send(200, json.dumps(self.completion(content, reason, **more)))

    def send(self, status: int, body: str | bytes, *, promised: int | None = None, **headers: Any) -> None:
        """Send a reply; `promised`: its length as the header has it."""
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        given = {"content-type": "application/json", "content-length": str(promised or len(data))}
        for name, value in (given | {name.replace("_", "-").lower(): value for name, value in headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def refuse(status: int, message: str = "no", code: str | None = None, param: str | None = None, **headers: Any) -> Act:
    """Return the act of a failure in the words of OpenAI's servers; `KEY` stands for the client's key."""

    def act(handler: Handler) -> None:
        error = {"message": message.replace("KEY", handler.key), "type": "x", "code": code, "param": param}
        shown = {name: value.replace("KEY", handler.key) for name, value in headers.items()}
        handler.send(status, json.dumps({"error": error}), **shown)

    return act


def body(text: str | bytes, **headers: Any) -> Act:
    """Return the act of sending this with status 200."""
    return lambda handler: handler.send(200, text, **headers)


def content(value: Any, reason: Any = "stop", **more: Any) -> Act:
    """Return the act of a reply with this content."""
    return lambda handler: handler.say(value, reason, **more)


def once(act: Act) -> Act:
    """Return the act of failing only the first time."""
    return lambda handler: act(handler) if handler.before == 0 else handler.say("Rating: [[8]]")


def unless(parameter: str, act: Act) -> Act:
    """Return the act of refusing requests that hold a parameter."""
    return lambda handler: act(handler) if parameter in handler.body else handler.say("Rating: [[8]]")


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def _close(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def _hang(handler: Handler) -> None:
    handler.server.closing.wait(30)


def _drip(data: bytes) -> Act:
    def act(handler: Handler) -> None:
        for number in range(300):
            handler.wfile.write(data if number == 0 else b" ")
            handler.wfile.flush()
            if handler.server.closing.wait(0.1):
                return

    return act


def _half(handler: Handler) -> None:
    data = json.dumps(handler.completion("Rating: [[8]]")).encode()
    handler.send(200, data[: len(data) // 2], promised=len(data))


def _raw(data: bytes) -> Act:
    def act(handler: Handler) -> None:
        handler.wfile.write(data)

    return act


def _endless(handler: Handler) -> None:
    handler.send(200, b'{"choices": "' + b"x" * (1 << 20), promised=1 << 40)
    for _ in range(99):
        handler.wfile.write(b"x" * (1 << 20))


def _value(text: str) -> Act:
    """Return the act of a good reply in which a number is replaced by this text."""

    def act(handler: Handler) -> None:
        handler.send(200, json.dumps(handler.completion("Rating: [[8]]")).replace("20", text, 1))

    return act


def _echo_key(handler: Handler) -> None:
    handler.say(f"Your key is {handler.key}. Rating: [[8]]")


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What the server does to requests about `bad`, and what becomes of them.

    Attributes:
        judge: the outcome at a judge: `answered`, `rejected`, or `ends`, where the step ends for all.
        engine: at an engine; the same unless it is given.
        words: in the reason or the message.
    """

    act: Act
    judge: str = "rejected"
    engine: str = ""
    words: str = ""

    def outcome(self, asks: str) -> str:
        """Return the one of `judge` or `engine`."""
        return self.engine or self.judge if asks == "engine" else self.judge


_LONG = "This model's maximum context length is 10 tokens; max_tokens is too large"
_OPENAI = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
_VLLM = '[{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]'
_DRIPPED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n"

BEHAVIOURS: dict[str, Behaviour] = {
    "400": Behaviour(act=refuse(400, "bad request"), words="400: bad request"),
    "400 too long": Behaviour(act=refuse(400, _LONG), words="maximum context length"),
    "401": Behaviour(act=refuse(401, "wrong key KEY"), judge="ends", words="answers 401"),
    "402": Behaviour(act=refuse(402), judge="ends", words="add credit"),
    "403": Behaviour(act=refuse(403), judge="ends", words="answers 403"),
    "404": Behaviour(act=refuse(404), judge="ends", words="correct base_url or model"),
    "404 page": Behaviour(act=lambda it: it.send(404, "<html>KEY</html>"), judge="ends", words="correct base_url"),
    "408": Behaviour(act=once(refuse(408)), judge="answered"),
    "409": Behaviour(act=once(refuse(409)), judge="answered"),
    "413": Behaviour(act=refuse(413, "too large"), words="413: too large"),
    "422": Behaviour(act=refuse(422, "no such thing"), words="422: no such thing"),
    "429": Behaviour(act=once(refuse(429)), judge="answered"),
    "429 with pause": Behaviour(act=once(refuse(429, retry_after="0.05")), judge="answered"),
    "429 with date": Behaviour(act=once(refuse(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")), judge="answered"),
    "429 with nonsense": Behaviour(act=once(refuse(429, retry_after="nan")), judge="answered"),
    "429 for an hour": Behaviour(act=refuse(429, "slow down", retry_after="3600"), words="429: slow down"),
    "429 always": Behaviour(act=refuse(429, "slow down"), words="429: slow down"),
    "429 no credit": Behaviour(act=refuse(429, code="insufficient_quota"), judge="ends", words="add credit"),
    "500": Behaviour(act=once(refuse(500)), judge="answered"),
    "500 always": Behaviour(act=refuse(500, "broken KEY"), words="500: broken ***"),
    "502 page": Behaviour(act=lambda it: it.send(502, "<html>bad gateway</html>"), words="bad gateway"),
    "503": Behaviour(act=once(refuse(503, retry_after_ms="5")), judge="answered"),
    "301": Behaviour(act=refuse(301, location="https://elsewhere/KEY"), judge="ends", words="redirects to"),
    "307": Behaviour(act=refuse(307, location="/v1/other"), judge="ends", words="redirects to"),
    "204": Behaviour(act=lambda it: it.send(204, b""), words="204"),
    "reset": Behaviour(act=once(reset), judge="answered"),
    "reset always": Behaviour(act=reset, words="no reply"),
    "close before headers": Behaviour(act=_close, words="no reply"),
    "hang": Behaviour(act=_hang, words="no complete reply within"),
    "slow headers": Behaviour(act=_drip(b"HTTP/1.1 200 OK\r\nx-slow: "), words="no complete reply within"),
    "drip": Behaviour(act=_drip(_DRIPPED), words="no complete reply within"),
    "half body": Behaviour(act=_half, words="no reply"),
    "half body once": Behaviour(act=once(_half), judge="answered"),
    "no HTTP": Behaviour(act=_raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), words="no reply"),
    "chunked garbage": Behaviour(
        act=_raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nno chunk\r\n"), words="no reply"
    ),
    "gzip garbage": Behaviour(act=body(b"no gzip", content_encoding="gzip"), words="encoding"),
    "gzip bomb": Behaviour(
        act=body(gzip.compress(b" " * (64 << 20), 1), content_encoding="gzip"), words="longer than 16 MiB"
    ),
    "100 MB": Behaviour(act=_endless, words="longer than 16 MiB"),
    "empty body": Behaviour(act=body(""), words="it is empty"),
    "truncated JSON": Behaviour(act=body('{"choices": [{"mess'), words="no JSON object"),
    "deep JSON": Behaviour(act=body("[" * 200_000), words="no JSON object"),
    "long number": Behaviour(act=body("9" * 5000), words="no JSON object"),
    "page": Behaviour(act=body("<html>hello</html>", content_type="text/html"), words="a page, not JSON"),
    "stream": Behaviour(act=body("data: {}\n\n", content_type="text/event-stream"), words="a stream of events"),
    "wrong type": Behaviour(
        act=lambda it: it.send(200, json.dumps(it.completion("[[8]]")), content_type="text/plain"), judge="answered"
    ),
    "list": Behaviour(act=body("[1, 2]"), words="no JSON object"),
    "error with 200": Behaviour(act=body('{"error": {"message": "overloaded"}}'), words="overloaded"),
    "no choices": Behaviour(act=body('{"choices": []}'), words="no choices"),
    "choices of text": Behaviour(act=body('{"choices": "none"}'), words="no choices"),
    "choice of null": Behaviour(act=body('{"choices": [null]}'), words="no choices"),
    "no message": Behaviour(act=body('{"choices": [{"index": 0}]}'), words="no text"),
    "content null": Behaviour(act=content(None), words="no text"),
    "only thoughts": Behaviour(act=content(None, "length"), words="token_limit: null"),
    "content of number": Behaviour(act=content(5), words="no text"),
    "content NaN": Behaviour(act=content(float("nan")), words="no text"),
    "content of images": Behaviour(act=content([{"type": "image_url", "image_url": "x"}]), words="no text"),
    "lone surrogate": Behaviour(
        act=content("\ud800 [[8]]"), judge="answered", engine="rejected", words="lone surrogate, U+D800"
    ),
    "NUL": Behaviour(act=content("\0 [[8]]"), judge="answered"),
    "usage NaN": Behaviour(act=_value("NaN"), judge="answered"),
    "usage Infinity": Behaviour(act=_value("-Infinity"), judge="answered"),
    "usage out of range": Behaviour(act=_value("1e999"), judge="answered"),
    "usage huge": Behaviour(act=_value("99999999999999999999999"), judge="answered"),
    "usage float": Behaviour(act=_value("20.5"), judge="answered"),
    "usage negative": Behaviour(act=_value("-3"), judge="answered"),
    "usage text": Behaviour(act=_value('"many"'), judge="answered"),
    "usage null": Behaviour(act=content("[[8]]", usage=None), judge="answered"),
    "cut": Behaviour(act=content("Rating: [[8", "length"), engine="answered", words="was cut after 20 tokens"),
    "cut after a verdict": Behaviour(act=content("[[8]] for", "length"), engine="answered", words="was cut"),
    "empty": Behaviour(act=content(""), engine="answered", words="the reply is empty"),
    "filtered": Behaviour(act=content("", "content_filter"), engine="answered", words="content_filter"),
    "finish reason of number": Behaviour(act=content("[[8]]", 5), judge="answered"),
    "no temperature (OpenAI)": Behaviour(
        act=unless("temperature", refuse(400, _OPENAI, "unsupported_value", "temperature")), words="temperature: null"
    ),
    "no temperature (Azure)": Behaviour(
        act=unless("temperature", refuse(400, "Unrecognized request argument supplied: temperature")),
        words="temperature: null",
    ),
    "no temperature (vLLM)": Behaviour(
        act=unless("temperature", lambda it: it.send(422, f'{{"detail": {_VLLM}}}')), words="temperature: null"
    ),
    "no max_tokens": Behaviour(
        act=unless("max_tokens", refuse(400, "'max_tokens' is not supported, use 'max_completion_tokens'")),
        words="token_limit: max_completion_tokens",
    ),
    "key in error": Behaviour(act=refuse(400, "KEY is KEY"), words="400: ***"),
    "key in header": Behaviour(act=refuse(400, "no", x_key="KEY", www_authenticate="KEY"), words="400: no"),
    "key in body": Behaviour(act=lambda it: it.send(400, it.key), words="400: ***"),
    "key in content": Behaviour(act=_echo_key, judge="answered"),
    "escapes": Behaviour(act=refuse(400, "\x1b[2J\x07red\u202e"), words="red"),
}


def parts_in(data: bytes, secret: str) -> set[str]:
    """Return the runs of eight characters of a secret that are in some bytes."""
    runs = {secret[place : place + 8] for place in range(len(secret) - 7)}
    return {run for run in runs if run.encode() in data}


def leaks(folder: Path, secret: str) -> list[Path]:
    """Return the files of a folder that hold a part of a secret; tables are read, since they are compressed."""
    found = []
    for file in filter(Path.is_file, folder.rglob("*")):
        data = file.read_bytes()
        if file.suffix == ".parquet":
            data += pl.read_parquet(file).write_json().encode()
        if parts_in(data, secret):
            found.append(file)
    return found


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """A server that listens for as long as the block runs."""
    with served(server):
        try:
            yield server
        finally:
            server.closing.set()


def fake_server(act: Act, *, bad: str = "bad") -> AbstractContextManager[FakeServer]:
    """A server that behaves as `act` says where `bad` is in a request, and well for others."""

    def choose(handler: Handler) -> None:
        handler.close_connection = True
        if bad in handler.said:
            act(handler)
        else:
            handler.say("Rating: [[8]]")

    return serving(FakeServer(choose))


# A server that works, refuses and answers as a test says.


Reply = tuple[int, Any]
"""Status and body: an object is sent as JSON, text as it is."""


def completion(text: str, reason: str = "stop", *, chat: bool = True) -> Reply:
    """Return the reply of a working server."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, **said}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    kind = "chat.completion" if chat else "text_completion"
    return 200, {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}


def refusal(status: int, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": "error", "param": None, "code": None}}


def answering(reply: Callable[[int, str, dict[str, Any]], Reply]) -> AbstractContextManager[FakeServer]:
    """A server on this machine; `reply` gets the request's number, path and body."""

    def act(handler: Handler) -> None:
        status, said = reply(handler.number, handler.path, dict(handler.body))
        handler.send(status, said if isinstance(said, str) else json.dumps(said), retry_after_ms="1")

    return serving(FakeServer(act))
