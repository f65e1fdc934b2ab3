"""Questions, answers and judges of tests."""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.replies import Reply, ServerCall
from gateau_dagster.features.evaluation.servers import JudgeConfig
from tests.kit.fake_server import FakeServer, Handler, reset, serving
from tests.kit.project import configured


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

    def __init__(self, reply: Callable[[ServerCall], str]) -> None:
        self._reply = reply
        self.asked: list[ServerCall] = []
        self._lock = threading.Lock()

    def __call__(self, asked: ServerCall) -> Reply:
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


class JudgeServer(FakeServer):
    """It does what `play` says."""

    def __init__(self, play: Play) -> None:
        super().__init__(self._answer)
        self.play = play

    @property
    def base_url(self) -> str:
        """As in `evaluation.judge.base_url`."""
        return self.address

    @property
    def asked(self) -> list[str]:
        """The last message of each request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    @property
    def keys(self) -> set[str | None]:
        """The Authorization headers."""
        return {headers.get("authorization") for _, headers in self.received}

    def _answer(self, handler: Handler) -> None:
        messages = handler.body["messages"]
        answer = self.play(messages[-1]["content"], handler.before)
        time.sleep(answer.wait)
        if answer.reset:
            handler.close_connection = True
            reset(handler)
            return
        words = [sum(len(each["content"].split()) for each in messages), len(answer.text.split())]
        usage = {"prompt_tokens": words[0], "completion_tokens": words[1], "total_tokens": 0}
        said = handler.completion(answer.text, usage=usage)
        if not answer.usage:
            del said["usage"]
        data = (answer.body if answer.body is not None else json.dumps(said)).encode()
        handler.send(
            answer.status, data[: len(data) // 2] if answer.cut else data, promised=len(data), **answer.headers
        )
        if answer.cut:
            handler.connection.shutdown(socket.SHUT_RDWR)


def error(status: int, message: str, *, code: str | None = None, **headers: str) -> Answer:
    """A failure in the words of OpenAI's servers."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": code}})
    return Answer(status=status, body=body, headers=headers)


def judge_server(play: Play = lambda message, before: Answer()) -> AbstractContextManager[JudgeServer]:
    return serving(JudgeServer(play))
