"""Questions, answers and judges of tests."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateau_dagster.config.base import Section
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.replies import JudgeCall, Reply
from tests.evaluation.builders import configured


def settings(**keys: Any) -> JudgeConfig:
    """A judge with prices, one request at a time."""
    given = {"base_url": "http://localhost:1/v1", "model": "judge", "prices": {"prompt": 2.0, "reply": 8.0}}
    return JudgeConfig.model_validate({**given, "concurrency": 1, "key": None, **keys})


def question(name: str, *, turns: int = 1, group: str = "all") -> Question:
    texts = tuple(f"{name} asks {turn}" for turn in range(turns))
    return Question(question_id=name, group=group, turns=texts, generation=Generation(max_new_tokens=8))


class Judged(RatedBenchmark):
    """A request for each turn: the question's turn and the answer to it."""

    def questions(self, materials: Materials) -> list[Question]:
        raise AssertionError("the tests bring questions along")

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        asked = zip(question.turns, answers, strict=True)
        return [
            self.request(question, "judge", f"{text} | {answer}", turn) for turn, (text, answer) in enumerate(asked)
        ]

    def pair_requests(self, question: Question, first: Sequence[str], second: Sequence[str]) -> list[JudgeRequest]:
        return [
            self.request(question, "judge", f"{question.question_id} A={left} B={right}", turn)
            for turn, (left, right) in enumerate(zip(first, second, strict=True))
        ]


JUDGED = Judged(configured(), Section())


class FakeJudge:
    """A judge in this process; `asked` counts what it was asked."""

    def __init__(self, reply: Callable[[JudgeCall], str]) -> None:
        self._reply = reply
        self.asked: list[JudgeCall] = []
        self._lock = threading.Lock()

    def __call__(self, asked: JudgeCall) -> Reply:
        with self._lock:
            self.asked.append(asked)
        words = sum(len(each["content"].split()) for each in asked.messages)
        return Reply(text=self._reply(asked), prompt_tokens=words, reply_tokens=4, seconds=0.0)

    def under_way(self) -> str:
        return ""


# An OpenAI-compatible judge over HTTP that does what a test tells it to, faults included.


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server does with a request: a message, or any status and body.

    cut: only half of the body comes, though more was promised. reset: the connection breaks. wait: seconds before.
    """

    text: str = "Rating: [[5]]"
    status: int = 200
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    usage: bool = True
    cut: bool = False
    reset: bool = False
    wait: float = 0.0


Play = Callable[[str, int], Answer]
"""From a request's last message, and how often it was sent before, to the answer."""


class JudgeServer(ThreadingHTTPServer):
    """`requests`: bodies in the order in which they came. `keys`: the Authorization headers."""

    daemon_threads = True

    def __init__(self, play: Play) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.play = play
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        """As in `evaluation.judge.base_url`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def asked(self) -> list[str]:
        """The last message of each request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message, server = body["messages"][-1]["content"], self.server
        with server.lock:
            before = server.asked.count(message)
            server.requests.append(body)
            server.keys.add(self.headers.get("Authorization"))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            self._send(server.play(message, before), body)
        finally:
            with server.lock:
                server.at_once -= 1

    def _send(self, answer: Answer, asked: dict[str, Any]) -> None:
        time.sleep(answer.wait)
        if answer.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        data = (answer.body if answer.body is not None else json.dumps(_completion(answer, asked))).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if answer.cut else data)
        if answer.cut:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def _completion(answer: Answer, asked: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text}
    prompt = sum(len(each["content"].split()) for each in asked["messages"])
    usage = {"prompt_tokens": prompt, "completion_tokens": len(answer.text.split()), "total_tokens": 0}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        **({"usage": usage} if answer.usage else {}),
    }


def error(status: int, message: str, *, code: str | None = None, **headers: str) -> Answer:
    """A failure in the words of OpenAI's servers."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": code}})
    return Answer(status=status, body=body, headers=headers)


@contextmanager
def judge_server(play: Play = lambda message, before: Answer()) -> Iterator[JudgeServer]:
    """A server that listens for as long as the block runs."""
    with JudgeServer(play) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
